/* SPDX-License-Identifier: MIT */
/*
 * translate [--address-spaces] IN.metal OUT LIBRARY: turns Metal into C++ that clang compiles to
 * run (metal_stdlib), or into C++ for OpenCL, whose pointers keep to their address spaces as
 * Metal's do (address_spaces.h). LIBRARY says what REAL is: bfloat or float; faults is another name
 * for float. Anything that this program does not know is an error, and so are a few things that
 * clang accepts and Metal does not. It expands macros that make kernels, before anything else, and
 * leaves the other macros to clang.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 31 };
enum kind { END, WORD, NUMBER, TEXT, MARK };

struct token {
    enum kind kind;
    const char *start, *end;
    int line;
    bool directive;      /* Part of a line that begins with #. */
    const char *instead; /* The text that is written for it, if not its own. */
};

struct parameter {
    const char *attribute;
    struct token *type, *type_end, *name;
    long buffer; /* -1: none. */
    bool reference, written;
};

struct kernel {
    struct token *name, *max_threads;
    struct parameter *parameters;
    int n_parameters;
};

struct constant {
    struct token *name, *index, *index_end;
};

static const char *in_name;
static bool address_spaces;
static struct token *tokens;
static size_t n_tokens;
static struct kernel *kernels;
static size_t n_kernels;
static struct constant *constants;
static size_t n_constants;
static char **vectors; /* The names of vector types. */
static size_t n_vectors;

static void
die(int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: error: ", in_name, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* Adds one element at the end of an array. */
static void *
grow(void *array, size_t *n, size_t size)
{
    char *all = realloc(array, (*n + 1) * size);
    if (!all)
        abort();
    memset(all + *n * size, 0, size);
    ++*n;
    return all;
}

static char *
format_text(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = malloc((size_t)n + 1);
    if (!text)
        abort();
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

/* ---- kernels made by macros ------------------------------------------------------------------ */

enum { MOST_MACRO_PARAMETERS = 8 };

/* "#define NAME(PARAMETERS) BODY" with a kernel in its body. */
struct macro {
    char *name, *parameters[MOST_MACRO_PARAMETERS], *body;
    int n;
};

static size_t
word_length(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_')
        n++;
    return n;
}

/* Reads the text between the bracket at p and the one that closes it, cut at its commas. Returns
 * the place behind it. */
static const char *
read_list(const char *p, char *list[MOST_MACRO_PARAMETERS], int *n)
{
    const char *start = ++p;
    int depth = 0;
    for (*n = 0; *n < MOST_MACRO_PARAMETERS && *p; p++) {
        if (!depth && (*p == ',' || *p == ')')) {
            start += strspn(start, " \t\n");
            list[(*n)++] = format_text("%.*s", (int)(p - start), start);
            start = p + 1;
            if (*p == ')')
                return p + 1;
        }
        depth += *p == '(';
        depth -= *p == ')';
    }
    die(1, "a macro of kernels takes up to %d parameters", MOST_MACRO_PARAMETERS);
    return p;
}

static void
write_expanded(FILE *out, const struct macro *m, char *const *arguments)
{
    for (const char *p = m->body; *p;) {
        const size_t n = word_length(p);
        int i = 0;
        while (i < m->n && (strlen(m->parameters[i]) != n || strncmp(m->parameters[i], p, n) != 0))
            i++;
        if (n && i < m->n)
            fputs(arguments[i], out);
        else
            fwrite(p, 1, n ? n : 1, out);
        p += n ? n : 1;
    }
}

/* Reads a directive that defines a macro of kernels. Returns its end, or NULL if it is another
 * directive. */
static const char *
read_macro(const char *p, struct macro *m)
{
    static const char define[] = "#define ";
    const char *end = p;
    while (*end && (*end != '\n' || end[-1] == '\\'))
        end++;
    const char *made = strstr(p, "kernel void");
    const char *name = p + sizeof define - 1;
    if (strncmp(p, define, sizeof define - 1) != 0 || !made || made > end ||
        name[word_length(name)] != '(')
        return NULL;
    m->name = format_text("%.*s", (int)word_length(name), name);
    const char *body = read_list(name + word_length(name), m->parameters, &m->n);
    m->body = format_text("%.*s", (int)(end - body), body);
    for (char *c = m->body; *c; c++)
        if (*c == '\\' || *c == '\n') /* Lines are counted where the macro is used. */
            *c = ' ';
    return end;
}

static void
free_texts(char **texts, int n)
{
    for (int i = 0; i < n; i++)
        free(texts[i]);
}

static void
free_macros(struct macro *macros, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(macros[i].name);
        free(macros[i].body);
        free_texts(macros[i].parameters, macros[i].n);
    }
    free(macros);
}

/* The text with the kernels that its macros make, line for line. */
static char *
expand_kernels(const char *p)
{
    struct macro *macros = NULL, *m;
    size_t n_macros = 0, size;
    char *expanded, *arguments[MOST_MACRO_PARAMETERS];
    FILE *out = open_memstream(&expanded, &size);
    if (!out)
        abort();
    for (bool begins = true; *p; begins = p[-1] == '\n') {
        struct macro one = { .n = 0 };
        const size_t n = word_length(p);
        const char *end = begins && *p == '#' ? read_macro(p, &one) : NULL;
        int given = 0;
        if (end) {
            macros = grow(macros, &n_macros, sizeof *macros);
            macros[n_macros - 1] = one;
            for (; p < end; p++)
                if (*p == '\n')
                    fputc('\n', out);
            continue;
        }
        for (m = macros; m < macros + n_macros; m++)
            if (strlen(m->name) == n && !strncmp(m->name, p, n) && p[n] == '(')
                break;
        if (n && m < macros + n_macros) {
            p = read_list(p + n, arguments, &given);
            if (given != m->n)
                die(1, "%s takes %d arguments", m->name, m->n);
            write_expanded(out, m, arguments);
            free_texts(arguments, given);
        } else {
            fwrite(p, 1, n ? n : 1, out);
            p += n ? n : 1;
        }
    }
    fclose(out);
    free_macros(macros, n_macros);
    return expanded;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool
is(const struct token *t, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(t->end - t->start) == n && !memcmp(t->start, text, n);
}

static bool
is_one_of(const struct token *t, const char *const *texts)
{
    for (; *texts; texts++)
        if (is(t, *texts))
            return true;
    return false;
}

static int
length(const struct token *t)
{
    return (int)(t->end - t->start);
}

static const char *
skip_blank(const char *p, int *line, bool *directive)
{
    for (;;) {
        if (p[0] == '\n') {
            ++*line;
            *directive = false;
            p++;
        } else if (p[0] == '\\' && p[1] == '\n') {
            ++*line;
            p += 2;
        } else if (isspace((unsigned char)*p)) {
            p++;
        } else if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n')
                p++;
        } else if (p[0] == '/' && p[1] == '*') {
            const char *end = strstr(p + 2, "*/");
            if (!end)
                die(*line, "a comment without an end");
            for (; p < end + 2; p++)
                *line += *p == '\n';
        } else {
            return p;
        }
    }
}

static const char *
token_end(const char *p, enum kind *kind, int line)
{
    if (isalpha((unsigned char)*p) || *p == '_') {
        *kind = WORD;
        while (isalnum((unsigned char)*p) || *p == '_')
            p++;
        return p;
    }
    if (isdigit((unsigned char)*p) || (*p == '.' && isdigit((unsigned char)p[1]))) {
        *kind = NUMBER;
        while (isalnum((unsigned char)*p) || *p == '.' || *p == '_' || *p == '\'' ||
               ((*p == '+' || *p == '-') && strchr("eEpP", p[-1])))
            p++;
        return p;
    }
    if (*p == '"' || *p == '\'') {
        *kind = TEXT;
        char quote = *p++;
        while (*p && *p != quote && *p != '\n')
            p += p[0] == '\\' && p[1] ? 2 : 1;
        if (*p != quote)
            die(line, "a %c without its end", quote);
        return p + 1;
    }
    *kind = MARK;
    return p + (!strncmp(p, "::", 2) || !strncmp(p, "->", 2) ? 2 : 1);
}

static void
tokenise(const char *p)
{
    int line = 1;
    bool directive = false;
    for (;;) {
        p = skip_blank(p, &line, &directive);
        tokens = grow(tokens, &n_tokens, sizeof *tokens);
        struct token *t = &tokens[n_tokens - 1];
        t->line = line;
        t->start = t->end = p;
        if (!*p)
            break;
        if (*p == '#' && !(n_tokens > 1 && tokens[n_tokens - 2].line == line))
            directive = true;
        t->directive = directive;
        t->end = p = token_end(p, &t->kind, line);
    }
    for (int i = 0; i < 8; i++) { /* A few more at the end, so that one may look ahead. */
        tokens = grow(tokens, &n_tokens, sizeof *tokens);
        tokens[n_tokens - 1] = tokens[n_tokens - 2];
    }
}

static void
drop(struct token *from, struct token *to)
{
    for (; from < to; from++)
        from->instead = "";
}

/* The token after the bracket that closes the one at t. */
static struct token *
behind(struct token *t)
{
    static const char open[] = "([{<", shut[] = ")]}>";
    char opens = *t->start, shuts = shut[strchr(open, opens) - open];
    int depth = 0, line = t->line;
    for (; t->kind != END; t++) {
        depth += *t->start == opens;
        depth -= *t->start == shuts && t->end == t->start + 1;
        if (!depth)
            return t + 1;
    }
    die(line, "a %c that nothing closes", opens);
    return t;
}

static const char *const spaces[] = { "device", "constant", "threadgroup", "thread", NULL };

static bool
has_space(const struct token *t, const struct token *end)
{
    for (; t < end; t++)
        if (is_one_of(t, spaces))
            return true;
    return false;
}

/* ---- numbers and vectors --------------------------------------------------------------------- */

/* Metal has no double: 0.5 is a float. */
static void
make_floats(void)
{
    for (struct token *t = tokens; t->kind != END; t++) {
        size_t n = (size_t)length(t);
        if (t->kind != NUMBER)
            continue;
        bool hex = t->start[0] == '0' && (t->start[1] == 'x' || t->start[1] == 'X'), real = false;
        for (const char *p = t->start; p < t->end; p++)
            real |= *p == '.' || (hex ? *p == 'p' || *p == 'P' : *p == 'e' || *p == 'E');
        char last = t->end[-1];
        if (last == 'h' || last == 'H')
            die(t->line, "half is not supported");
        if (real && last != 'f' && last != 'F' && last != 'b')
            t->instead = format_text("%.*sf", (int)n, t->start);
    }
}

static bool
is_vector(const struct token *t)
{
    for (size_t i = 0; i < n_vectors; i++)
        if (is(t, vectors[i]))
            return true;
    return false;
}

static void
add_vector(char *name)
{
    vectors = grow(vectors, &n_vectors, sizeof *vectors);
    vectors[n_vectors - 1] = name;
}

/* typedef vec<..> NAME; typedef float4 NAME; using NAME = vec<..>; */
static void
learn_vector(struct token *t)
{
    if (is(t, "typedef") && (is(t + 1, "vec") || is_vector(t + 1))) {
        struct token *name = is(t + 1, "vec") ? behind(t + 2) : t + 2;
        if (name->kind == WORD && is(name + 1, ";"))
            add_vector(format_text("%.*s", length(name), name->start));
    }
    if (is(t, "using") && is(t + 2, "=") && (is(t + 3, "vec") || is_vector(t + 3)))
        add_vector(format_text("%.*s", length(t + 1), t[1].start));
}

/* float4(a, b, c, d) -> metal::make_vector<float4>(a, b, c, d) */
static void
make_vectors(void)
{
    static const char *const types[] = { "float", "int",   "uint", "short", "ushort",
                                         "char",  "uchar", "long", "ulong", "bfloat" };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (int n = 2; n <= 4; n++)
            add_vector(format_text("%s%d", types[i], n));
    for (struct token *t = tokens; t->kind != END; t++) {
        learn_vector(t);
        struct token *end = t + 1;
        if (is(t, "vec") && is(t + 1, "<"))
            end = behind(t + 1);
        else if (!is_vector(t))
            continue;
        if (!is(end, "(") || (t > tokens && is(t - 1, "operator")))
            continue;
        const char *shut = end == t + 1 ? ">" : "";
        t->instead = format_text("metal::make_vector<%.*s%s", length(t), t->start, shut);
        if (end > t + 1)
            end[-1].instead = ">>";
    }
}

/* ---- what Metal refuses and clang does not --------------------------------------------------- */

static void
check_pointer(struct token *t, struct token *end, struct token *value)
{
    for (struct token *p = t; p < value; p++)
        if (p->kind == MARK && (is(p, "*") || is(p, "&")) && !has_space(t, end))
            die(p->line, "a pointer or reference without an address space");
}

/* Checks the function whose parameters lie between t and end. */
static void
check_parameters(struct token *t, struct token *end)
{
    int depth = 0;
    struct token *start = t, *value = NULL;
    for (; t <= end; t++) {
        if (t == end || (!depth && is(t, ","))) {
            check_pointer(start, t, value ? value : t);
            start = t + 1;
            value = NULL;
        } else if (strchr("(<[{", *t->start)) {
            depth++;
        } else if (strchr(")>]}", *t->start)) {
            depth--;
        } else if (!depth && is(t, "=") && !value) {
            value = t;
        }
    }
}

/* Checks a statement that declares TYPE *name, or a variable in threadgroup memory. */
static void
check_statement(struct token *t)
{
    static const char *const not_types[] = { "return", "case", "else", "goto", "delete", NULL };
    if (is(t, "threadgroup")) {
        struct token *p = t;
        while (p->kind != END && !is(p, ";") && !is(p, "=") && !is(p, "*") && !is(p, "&"))
            p++;
        if (!is(p, "*") && !is(p, "&"))
            die(t->line, "variables in threadgroup memory are not supported: use an argument with "
                         "[[threadgroup(0)]]");
    }
    t += is(t, "const");
    if (t->kind != WORD || is_one_of(t, spaces) || is_one_of(t, not_types))
        return;
    struct token *p = t + 1;
    while (is(p, "::") && p[1].kind == WORD)
        p += 2;
    if (is(t, "vec") && is(p, "<"))
        p = behind(p);
    if (!is(p, "*") && !is(p, "&"))
        return;
    p += 1 + is(p + 1, "const");
    if (p->kind == WORD && p[1].kind == MARK && strchr("=;,[", *p[1].start) && !is(p + 2, "="))
        die(p->line, "a pointer or reference without an address space");
}

static void
check_words(void)
{
    static const char *const no_functions[] = { "if",     "for",    "while",     "switch",
                                                "sizeof", "return", "constexpr", NULL };
    static const char *const refused[] = { "double",  "half",     "new", "delete", "goto",
                                           "virtual", "throw",    "try", "catch",  "typeid",
                                           "vertex",  "fragment", NULL };
    struct token *last = NULL; /* The last token that is not part of a directive. */
    for (struct token *t = tokens; t->kind != END; t++) {
        if (t->directive)
            continue;
        if (!last || (last->kind == MARK && strchr(";{}", *last->start)))
            check_statement(t);
        if (is_one_of(t, refused))
            die(t->line, "%.*s: not in Metal, or not supported", length(t), t->start);
        if (is(t, "(") && last && last->kind == WORD && !is_one_of(last, no_functions)) {
            struct token *end = behind(t);
            if (is(end, "{") || (is(end, "const") && is(end + 1, "{")))
                check_parameters(t + 1, end - 1);
        }
        last = t;
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The word of the attribute at t, and the token after its ]]; NULL if there is no attribute. */
static struct token *
attribute_at(struct token *t, struct token **end)
{
    if (!is(t, "[") || !is(t + 1, "[") || t[1].start != t->end)
        return NULL;
    *end = behind(t);
    return t + 2;
}

static long
whole_number(const struct token *t, const struct token *end, long below)
{
    char *rest;
    long n = strtol(t->start, &rest, 10);
    if (end != t + 1 || rest != t->end || n < 0 || n >= below)
        die(t->line, "a number below %ld is expected here", below);
    return n;
}

static bool
is_position(const char *attribute)
{
    static const char *const names[] = { "thread_position_in_grid",
                                         "thread_position_in_threadgroup",
                                         "threadgroup_position_in_grid",
                                         "threads_per_threadgroup",
                                         "threadgroups_per_grid",
                                         "threads_per_grid",
                                         NULL };
    for (const char *const *name = names; *name; name++)
        if (!strcmp(attribute, *name))
            return true;
    return false;
}

static bool
is_index(const char *attribute)
{
    static const char *const names[] = {
        "thread_index_in_threadgroup",    "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup",
        "threads_per_simdgroup",          NULL
    };
    for (const char *const *name = names; *name; name++)
        if (!strcmp(attribute, *name))
            return true;
    return false;
}

static bool
is_unsigned(const struct parameter *p)
{
    static const char *const types[] = { "uint",  "ushort",  "uint2", "ushort2",
                                         "uint3", "ushort3", NULL };
    return p->type_end == p->type + 1 && is_one_of(p->type, types) &&
           (is_position(p->attribute) || isalpha((unsigned char)p->type_end[-1].end[-1]));
}

/* Reads the type and the name of an argument at [[buffer(n)]], and what its address space
 * allows. */
static void
read_buffer(struct parameter *p, struct token *argument)
{
    struct token *mark = p->type_end - 1;
    while (mark > p->type && is(mark, "const"))
        mark--;
    p->reference = is(mark, "&");
    if (!p->reference && !is(mark, "*"))
        die(p->name->line, "a buffer is a pointer or a reference");
    bool is_device = false, is_const = false;
    for (struct token *t = p->type; t < mark; t++) {
        is_device |= is(t, "device");
        is_const |= is(t, "const");
    }
    if (!is_device && !has_space(p->type, mark))
        die(p->name->line, "a buffer without an address space");
    p->buffer = whole_number(argument, behind(argument - 1) - 1, BUFFERS);
    p->written = is_device && !is_const;
}

static struct parameter
read_parameter(struct token *t, struct token *end)
{
    struct parameter p = { .buffer = -1, .type = t };
    struct token *attribute = NULL, *after = NULL;
    for (; t < end && !attribute; t++)
        if ((attribute = attribute_at(t, &after))) {
            p.name = t - 1;
            drop(t, after);
        }
    if (!attribute || after != end || p.name <= p.type || p.name->kind != WORD)
        die(p.type->line, "an argument of a kernel is TYPE NAME [[ATTRIBUTE]]");
    p.type_end = p.name;
    p.attribute = format_text("%.*s", length(attribute), attribute->start);
    if (is(attribute, "buffer")) {
        read_buffer(&p, attribute + 2);
    } else if (is(attribute, "threadgroup")) {
        whole_number(attribute + 2, behind(attribute + 1) - 1, 1);
        if (!is(p.type, "threadgroup") || !is(p.type_end - 1, "*"))
            die(attribute->line, "[[threadgroup(0)]] is a pointer to threadgroup memory");
    } else if (!is_position(p.attribute) && !is_index(p.attribute)) {
        die(attribute->line, "the attribute %s is not supported", p.attribute);
    } else if (!is_unsigned(&p)) {
        die(attribute->line, "%s is uint or ushort, or a vector of it if it is a position",
            p.attribute);
    }
    return p;
}

/* Checks that each buffer is used once, and that all positions of one kernel have the same number
 * of elements. */
static void
check_kernel(const struct kernel *k)
{
    int elements = 0;
    for (int i = 0; i < k->n_parameters; i++) {
        const struct parameter *p = &k->parameters[i];
        if (is_position(p->attribute)) {
            char last = p->type_end[-1].end[-1];
            int n = isdigit((unsigned char)last) ? last - '0' : 1;
            if (elements && n != elements)
                die(p->name->line, "positions have to have as many elements each");
            elements = n;
        }
        for (int j = 0; j < i; j++)
            if (!strcmp(p->attribute, k->parameters[j].attribute) &&
                p->buffer == k->parameters[j].buffer)
                die(p->name->line, "a second argument like it");
    }
}

static void
read_parameters(struct kernel *k, struct token *t, struct token *end)
{
    int depth = 0;
    struct token *start = t;
    for (; t <= end; t++) {
        if ((t == end && t > start) || (!depth && is(t, ","))) {
            size_t n = (size_t)k->n_parameters;
            k->parameters = grow(k->parameters, &n, sizeof *k->parameters);
            k->parameters[k->n_parameters++] = read_parameter(start, t);
            start = t + 1;
        } else if (strchr("([", *t->start)) {
            depth++;
        } else if (strchr(")]", *t->start)) {
            depth--;
        }
    }
}

/* [[max_total_threads_per_threadgroup(n)]] */
static void
read_limit(struct kernel *k, struct token *word)
{
    if (word[2].kind != NUMBER)
        die(word->line, "a number is expected here");
    k->max_threads = word + 2;
}

static struct token *
read_kernel(struct token *t, struct token *limit)
{
    struct kernel k = { .name = t + 2 };
    if (!is(t + 1, "void") || k.name->kind != WORD || !is(t + 3, "("))
        die(t->line, "kernel is a keyword of Metal, and what follows is no kernel");
    if (t > tokens && is(t - 1, ">"))
        die(t->line, "templates of kernels are not supported");
    t->instead = address_spaces ? "" : "static __attribute__((noinline))";
    struct token *end = behind(t + 3), *after;
    read_parameters(&k, t + 4, end - 1);
    if (limit)
        read_limit(&k, limit);
    struct token *word = attribute_at(end, &after);
    if (word && is(word, "max_total_threads_per_threadgroup")) {
        read_limit(&k, word);
        drop(end, after);
        end = after;
    }
    if (!is(end, "{"))
        die(end->line, "a kernel has to be defined where it is declared");
    check_kernel(&k);
    kernels = grow(kernels, &n_kernels, sizeof *kernels);
    kernels[n_kernels - 1] = k;
    return end;
}

/* constant TYPE NAME [[function_constant(INDEX)]]; becomes a variable. */
static void
read_constant(struct token *t, struct token *word, struct token *end)
{
    static const char *const types[] = { "uint", "int", "float", "bool", NULL };
    struct constant c = { .name = t - 1, .index = word + 2, .index_end = behind(word + 1) - 1 };
    struct token *space = t - 3;
    if (space < tokens || !is(space, "constant") || !is_one_of(space + 1, types) || !is(end, ";"))
        die(t->line, "a function constant is: constant uint|int|float|bool NAME "
                     "[[function_constant(INDEX)]];");
    space->instead = address_spaces ? "extern constant" : "static";
    drop(t, end);
    constants = grow(constants, &n_constants, sizeof *constants);
    constants[n_constants - 1] = c;
}

static void
read_declarations(void)
{
    struct token *limit = NULL, *end;
    for (struct token *t = tokens; t->kind != END; t++) {
        if (t->directive) {
            if (is(t, "#") && is(t + 1, "include") && is(t + 2, "<") &&
                (!strncmp(t[3].start, "metal", 5) || !strncmp(t[3].start, "simd", 4)))
                drop(t, behind(t + 2));
            continue;
        }
        if (is(t, "kernel")) {
            t = read_kernel(t, limit);
            limit = NULL;
        }
        struct token *word = attribute_at(t, &end);
        if (!word)
            continue;
        if (is(word, "function_constant")) {
            read_constant(t, word, end);
        } else if (is(word, "max_total_threads_per_threadgroup") && is(end, "kernel")) {
            limit = word;
            drop(t, end);
        } else {
            die(word->line, "the attribute %.*s is not supported here", length(word), word->start);
        }
        t = end - 1;
    }
}

/* ---- C++ ------------------------------------------------------------------------------------- */

static void
write_source(FILE *out, const char *text)
{
    const char *at = text;
    for (struct token *t = tokens; t->kind != END; t++) {
        fwrite(at, 1, (size_t)(t->start - at), out);
        if (t->instead)
            fputs(t->instead, out);
        else
            fwrite(t->start, 1, (size_t)length(t), out);
        at = t->end;
    }
    fputs(at, out);
}

static void
write_span(FILE *out, const struct token *t, const struct token *end)
{
    for (; t < end; t++)
        fprintf(out, "%.*s ", length(t), t->start);
}

static void
write_argument(FILE *out, const struct parameter *p)
{
    static const char *const fields[][2] = {
        { "thread_position_in_grid", "position_in_grid" },
        { "thread_position_in_threadgroup", "position_in_threadgroup" },
        { "threadgroup_position_in_grid", "threadgroup_position" },
        { "threads_per_threadgroup", "threads_per_threadgroup" },
        { "threadgroups_per_grid", "threadgroups" },
        { "threads_per_grid", "threads" },
        { "thread_index_in_threadgroup", "index" },
        { "thread_index_in_simdgroup", "lane" },
        { "simdgroup_index_in_threadgroup", "simdgroup" },
        { "simdgroups_per_threadgroup", "simdgroups" },
    };
    if (p->buffer >= 0 || !strcmp(p->attribute, "threadgroup")) {
        fprintf(out, p->reference ? "*(" : "(");
        for (const struct token *t = p->type; t < p->type_end; t++)
            fprintf(out, "%.*s ", length(t), is(t, "&") ? "*" : t->start);
        if (p->buffer >= 0)
            fprintf(out, ")place->buffers[%ld]", p->buffer);
        else
            fprintf(out, ")place->shared");
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!strcmp(p->attribute, fields[i][0]))
            fprintf(out, "metal::place_of<%.*s>(place->%s)", length(p->type), p->type->start,
                    fields[i][1]);
    if (!strcmp(p->attribute, "threads_per_simdgroup"))
        fprintf(out, "EMULATOR_LANES");
}

static void
write_thunk(FILE *out, const struct kernel *k)
{
    fprintf(out,
            "EMULATOR_APART static void emulator_run_%.*s(const struct emulator_place *place)\n"
            "{\n    %.*s(",
            length(k->name), k->name->start, length(k->name), k->name->start);
    for (int i = 0; i < k->n_parameters; i++) {
        fprintf(out, i ? ",\n        " : "\n        ");
        write_argument(out, &k->parameters[i]);
    }
    fprintf(out, ");\n    (void)place;\n}\n");
}

static void
write_tables(FILE *out, const char *library)
{
    fprintf(out, "static const struct emulator_kernel emulator_kernels[] = {\n");
    for (size_t i = 0; i < n_kernels; i++) {
        const struct kernel *k = &kernels[i];
        fprintf(out, "    { \"%.*s\", emulator_run_%.*s, ", length(k->name), k->name->start,
                length(k->name), k->name->start);
        fprintf(out, "%.*s, {", k->max_threads ? length(k->max_threads) : 1,
                k->max_threads ? k->max_threads->start : "0");
        for (int b = 0; b < BUFFERS; b++) {
            int use = 0;
            for (int p = 0; p < k->n_parameters; p++)
                if (k->parameters[p].buffer == b)
                    use = 1 + k->parameters[p].written;
            fprintf(out, " %d,", use);
        }
        fprintf(out, " }, &emulator_library_%s },\n", library);
    }
    fprintf(out, "};\nstatic const struct emulator_constant emulator_constants[] = {\n");
    for (size_t i = 0; i < n_constants; i++) {
        const struct token *name = constants[i].name;
        fprintf(out, "    { \"%.*s\", ", length(name), name->start);
        write_span(out, constants[i].index, constants[i].index_end);
        fprintf(out, ", sizeof %.*s, &%.*s },\n", length(name), name->start, length(name),
                name->start);
    }
    fprintf(out, "    { \"\", EMULATOR_CONSTANTS, 0, nullptr }\n};\n");
}

/* The library's variables lie in a separate section; the linker marks its start and end. */
static void
write_head(FILE *out, const char *library)
{
    fprintf(out,
            "#define REAL %s\n"
            "#include \"instrument.h\"\n"
            "extern \"C\" const struct emulator_library emulator_library_%s;\n"
            "#pragma clang section bss=\"emulator_data_%s\"\n"
            "namespace metal_%s\n{\n#line 1 \"%s\"\n",
            strcmp(library, "bfloat") ? "float" : "bfloat", library, library, library, in_name);
}

static void
write_tail(FILE *out, const char *library)
{
    fprintf(out, "\n#line 1 \"thunks of %s\"\n", in_name);
    for (size_t i = 0; i < n_kernels; i++)
        write_thunk(out, &kernels[i]);
    write_tables(out, library);
    for (int i = 0; i < 2; i++)
        fprintf(out,
                "extern \"C\" __attribute__((weak, visibility(\"hidden\"))) const char "
                "__%s_emulator_data_%s[];\n",
                i ? "stop" : "start", library);
    fprintf(out,
            "}\n"
            "extern \"C\" const struct emulator_library emulator_library_%s = {\n"
            "    \"%s\", metal_%s::emulator_kernels, %zu, metal_%s::emulator_constants, %zu,\n",
            library, library, library, n_kernels, library, n_constants);
    fprintf(out, "    { metal_%s::__start_emulator_data_%s, metal_%s::__stop_emulator_data_%s },\n",
            library, library, library, library);
    fprintf(out, "};\n");
}

static char *
read_all(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t n = 0, got = 1;
    while (file && got) {
        text = realloc(text, n + 65537);
        if (!text)
            abort();
        got = fread(text + n, 1, 65536, file);
        n += got;
    }
    if (!file || ferror(file)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    fclose(file);
    text[n] = '\0';
    return text;
}

int
main(int argc, char **argv)
{
    address_spaces = argc > 1 && !strcmp(argv[1], "--address-spaces");
    argv += address_spaces;
    if (argc - address_spaces != 4) {
        fprintf(stderr, "usage: translate [--address-spaces] IN.metal OUT LIBRARY\n");
        return 2;
    }
    const char *library = argv[3];
    in_name = argv[1];
    char *read = read_all(in_name), *text = expand_kernels(read);
    free(read);
    tokenise(text);
    check_words();
    read_declarations();
    make_floats();
    make_vectors();
    if (!n_kernels)
        die(1, "no kernels in it");
    FILE *out = fopen(argv[2], "w");
    if (!out) {
        fprintf(stderr, "cannot write %s\n", argv[2]);
        return 1;
    }
    if (address_spaces)
        fprintf(out, "#define REAL %s\n#include \"address_spaces.h\"\n#line 1 \"%s\"\n",
                strcmp(library, "bfloat") ? "float" : "bfloat", in_name);
    else
        write_head(out, library);
    write_source(out, text);
    if (!address_spaces)
        write_tail(out, library);
    if (fclose(out)) {
        fprintf(stderr, "cannot write %s\n", argv[2]);
        return 1;
    }
    return 0;
}
