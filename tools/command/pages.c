/* SPDX-License-Identifier: MIT */
/* Prints the manual page and bash's completion of a program, from its subcommands and their
 * options. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

/* Calls `see` for each subcommand, and for each verb in place of one that has verbs. */
static void
each_tool(const struct tool_program *p, void (*see)(const struct tool *tool))
{
    for (const struct tool *t = p->tools; t < p->tools + p->n; t++)
        if (t->verbs)
            each_tool(t->verbs, see);
        else
            see(t);
}

/* ---- the manual page ------------------------------------------------------------------------- */

/* Prints a text so that troff takes no part of it for a command. */
static void
print_roff(const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '-' || *text == '\\')
            fputs(*text == '-' ? "\\-" : "\\e", stdout);
        else
            putchar(*text);
        begins = *text == '\n';
    }
}

static void
print_roff_option(void *user, const char *name, const char *value, const char *help)
{
    (void)user;
    fputs(".TP\n.B ", stdout);
    print_roff(name);
    if (value) {
        fputs(" \\fI", stdout);
        print_roff(value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    print_roff(help);
    putchar('\n');
}

static void
print_section(const struct tool *tool)
{
    char text[TOOL_USAGE_BYTES];
    printf(".SH ");
    print_roff(tool->name);
    if (!tool->program) {
        fputs("\n.B ", stdout);
        print_roff(tool_usage(tool, text));
        fputs(" [options]\n.PP", stdout);
    }
    putchar('\n');
    print_roff(tool->does);
    putchar('\n');
    tool_each_option(tool, print_roff_option, NULL);
    if (tool->example) {
        fputs(".PP\nExample:\n.PP\n.RS\n", stdout);
        print_roff(tool->example);
        fputs("\n.RE\n", stdout);
    }
}

void
tool_print_man(const struct tool_program *p)
{
    printf(".TH %s 1 \"\" \"qwenvit %s\"\n.SH NAME\n%s \\- ", p->name, qv_version(), p->name);
    print_roff(p->about);
    printf("\n.SH SYNOPSIS\n.B %s\nSUBCOMMAND ...\n", p->name);
    each_tool(p, print_section);
    fputs(".SH EXIT STATUS\n", stdout);
    print_roff(TOOL_EXIT_CODES);
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void
print_word(void *user, const char *name, const char *value, const char *help)
{
    (void)user, (void)value, (void)help;
    if (*name == '-')
        printf(" %.*s", (int)strcspn(name, "["), name);
}

static void
print_case(const struct tool *tool)
{
    if (tool->program)
        return;
    printf("    '%s'*) words='--help", tool->name);
    tool_each_option(tool, print_word, NULL);
    puts("' ;;");
}

static void
print_names(const struct tool_program *p)
{
    for (size_t i = 0; i < p->n; i++)
        printf("%s%s", i ? " " : "", tool_word(&p->tools[i]));
}

void
tool_print_completion(const struct tool_program *p)
{
    char function[64];
    snprintf(function, sizeof function, "_%s", p->name);
    for (char *c = function; *c; c++)
        *c = (char)(*c == '-' ? '_' : *c);
    printf("# bash completion of %s\n%s()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
           "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n",
           p->name, function);
    each_tool(p, print_case);
    fputs("    esac\n    case $COMP_CWORD:${COMP_WORDS[1]} in\n    1:*) words='", stdout);
    print_names(p);
    puts("' ;;");
    for (const struct tool *t = p->tools; t < p->tools + p->n; t++)
        if (t->verbs) {
            printf("    2:%s) words='", t->name);
            print_names(t->verbs);
            puts("' ;;");
        }
    printf("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
           "complete -o bashdefault -o default -F %s %s\n",
           function, p->name);
}
