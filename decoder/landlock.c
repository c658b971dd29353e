/* SPDX-License-Identifier: MIT */
/* Limits the files that a GPU process may use to those of lock.inc (Linux's Landlock). */
#include <errno.h>

#include "decoder.h"

#ifdef __linux__
#include <fcntl.h>
#include <glob.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Definitions of Landlock's later versions, because the system's headers may be older than the
 * kernel. */
enum { CREATE_RULESET = 444, ADD_RULE, RESTRICT_SELF };
enum { VERSION = 1, PATH_BENEATH = 1 };
enum {
    WRITE_FILE = 1 << 1,
    READ_FILE = 1 << 2,
    READ_DIR = 1 << 3,
    IOCTL_DEV = 1 << 15,
    ALL_OF_FIRST = (1 << 13) - 1,
    REFER = 1 << 13,
    TRUNCATE = 1 << 14,
    BIND_AND_CONNECT = 3,
    ABSTRACT_SOCKETS = 1 << 0,
    SIGNALS = 1 << 1
};

struct ruleset {
    uint64_t files, network, scoped;
};

struct rule {
    uint64_t access;
    int32_t folder;
} __attribute__((packed));

/* The accesses that each version of Landlock denies unless a rule allows them. */
static const struct {
    long version;
    struct ruleset refused;
} versions[] = {
#define REFUSE(version, files, network, scoped) { version, { files, network, scoped } },
#include "lock.inc"
};

static const struct {
    const char *path;
    uint64_t access;
} needed[] = {
#define PATH(path, access) { path, access },
#include "lock.inc"
};

static bool
let(int rules, const char *path, uint64_t access)
{
    struct rule rule = { access, open(path, O_PATH | O_CLOEXEC) };
    if (rule.folder < 0)
        return true; /* a missing file needs no rule */
    const bool done = !syscall(ADD_RULE, rules, PATH_BENEATH, &rule, 0);
    close(rule.folder);
    return done;
}

static bool
let_all(int rules, uint64_t known)
{
    bool done = true;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        glob_t found = { .gl_pathc = 0 };
        if (!glob(needed[i].path, 0, NULL, &found))
            for (size_t k = 0; k < found.gl_pathc; k++)
                done = done && let(rules, found.gl_pathv[k], needed[i].access & known);
        globfree(&found);
    }
    return done;
}

const char *
qvm_sandbox_files(void)
{
    struct ruleset all = { 0, 0, 0 };
    const long version = syscall(CREATE_RULESET, NULL, 0, VERSION);
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (versions[i].version <= version) {
            all.files |= versions[i].refused.files;
            all.network |= versions[i].refused.network;
            all.scoped |= versions[i].refused.scoped;
        }
    /* a kernel without the last members accepts them if they are 0 */
    const int rules = version < 1 ? -1 : (int)syscall(CREATE_RULESET, &all, sizeof all, 0);
    if (rules < 0)
        return "Landlock";
    const bool done = let_all(rules, all.files) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
                      !syscall(RESTRICT_SELF, rules, 0);
    close(rules);
    return done ? NULL : "Landlock";
}

#else

const char *
qvm_sandbox_files(void)
{
    errno = ENOTSUP;
    return "this system";
}

#endif
