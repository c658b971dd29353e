/* SPDX-License-Identifier: MIT */
/* Prints bash completion for a program, from its subcommands and their options. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

const char *
tool_word(const struct tool *tool)
{
    const char *space = strrchr(tool->name, ' ');
    return space ? space + 1 : tool->name;
}

/* Calls `see` for each subcommand; for a subcommand with verbs, for each verb instead. */
static void
each_tool(const struct tool_program *p, void (*see)(const struct tool *tool))
{
    for (const struct tool *t = p->tools; t < p->tools + p->n; t++)
        if (t->verbs)
            each_tool(t->verbs, see);
        else
            see(t);
}

static void
print_case(const struct tool *tool)
{
    if (tool->program || tool->elsewhere)
        return;
    printf("    '%s'*) words='--help", tool->name);
    tool_print_options(tool);
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
