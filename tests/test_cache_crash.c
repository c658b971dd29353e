/* SPDX-License-Identifier: MIT */
/*
 * Kills a run that adds to a cache or prunes it at every call that changes the folder (kill -9
 * before the call, or half way through it), or makes that call fail. Then the run is repeated:
 * every key must be in the cache once, with the bytes of an undisturbed run, and nothing else. At
 * any moment of a prune, the valid records must be the same as before it. The linker inserts the
 * wrappers.
 */
#include "test.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>

#include "cache/open.h"
#include "cache_tools.h"
#include "sync_log.h"
#include "wrap.h"

/* ---- the calls ------------------------------------------------------------------------------- */

static atomic_int n_calls;
static int fault_at;     /* The number of the call that fails, from 1; 0: none. */
static int fault_errno;  /* The errno of the call that fails; 0: the call ends the process. */
static bool fault_half;  /* A write does half of its work first. */
static bool no_tmpfile;  /* As on a file system that has no O_TMPFILE. */
static bool no_locks;    /* As on a file system that has no locks. */
static int sync_at;      /* The number of the sync that fails, from 1; 0: none. */
static off_t disk_bytes; /* The space that the disk has for a part; 0: there is no limit. */

/* Returns whether the call must fail, and sets errno. */
static bool
is_fault(void)
{
    if (atomic_fetch_add(&n_calls, 1) + 1 != fault_at)
        return false;
    if (!fault_errno)
        kill(getpid(), SIGKILL);
    errno = fault_errno;
    return true;
}

static const char
    *not_opened; /* The part of a name that cannot be opened for reading; NULL: none. */
static int not_opened_errno;

static bool
is_not_opened(const char *path)
{
    errno = not_opened_errno;
    return not_opened && strstr(path, not_opened);
}

WRAPPED(int, open, (const char *path, int flags, ...))
{
    const bool is_part = not_opened && !strcmp(not_opened, "part-");
    return is_part && is_not_opened(path) ? -1 : __real_open(path, flags, 0666);
}

static bool not_listed; /* Folders fail with not_opened_errno. */

WRAPPED(DIR *, opendir, (const char *path))
{
    errno = not_opened_errno;
    return not_listed ? NULL : __real_opendir(path);
}

WRAPPED(int, openat, (int dir, const char *path, int flags, ...))
{
    if (!(flags & (O_CREAT | O_TMPFILE)))
        return is_not_opened(path) ? -1 : __real_openat(dir, path, flags);
    if (no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return is_fault() ? -1 : __real_openat(dir, path, flags, 0666);
}

/* The other calls go straight through; those that write can do half of their work. */
#define WRAP(type, call, parameters, arguments, before)                                            \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters                                                                  \
    {                                                                                              \
        before;                                                                                    \
        return is_fault() ? -1 : __real_##call arguments;                                          \
    }

static bool
is_next(void)
{
    return fault_half && atomic_load(&n_calls) + 1 == fault_at;
}

/* The disk's sectors that the part has which is being written: they were allocated or written. */
enum { SECTOR = 64 };
static bool has_sector[1 << 16];
static off_t n_sectors;

/* Takes the sectors of a range; returns true if the disk has no more. */
static bool
is_full(off_t at, off_t end)
{
    for (off_t i = at / SECTOR; disk_bytes && i * SECTOR < end; i++) {
        assert_true((size_t)i < sizeof has_sector);
        if (has_sector[i])
            continue;
        errno = ENOSPC;
        if ((n_sectors + 1) * SECTOR > disk_bytes)
            return true;
        has_sector[i] = true;
        n_sectors++;
    }
    return false;
}

static void
give_sectors_back(off_t from)
{
    for (size_t i = (size_t)(from + SECTOR - 1) / SECTOR; i < sizeof has_sector; i++) {
        n_sectors -= has_sector[i];
        has_sector[i] = false;
    }
}

WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n),
     if (!at) give_sectors_back(0);
     if (is_full(at, at + n)) return -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), sync_log_fd(SYNC_WRITTEN, fd);
     give_sectors_back(n))
static void look_at_removal(int dir, const char *path);
WRAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags),
     look_at_removal(dir, path))
static void (*spoil)(int fd); /* Spoils a part whose front was just written. */

WRAP(
    ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at),
    sync_log_fd(SYNC_WRITTEN, fd);
    if (is_next()) __real_pwrite(fd, data, n / 2, at); if (is_full(at, at + (off_t)n)) return -1;
    if (spoil && !at) {
        const ssize_t put = __real_pwrite(fd, data, n, at);
        spoil(fd);
        return put;
    })

static int n_names;      /* How many names a listing has given. */
static int look_away_at; /* The number of the name before which look_away is called, from 1; 0:
                          * never. */
static void (*look_away)(void);

WRAPPED(struct dirent *, readdir, (DIR * dir))
{
    if (look_away_at && ++n_names == look_away_at) {
        look_away_at = 0;
        look_away();
        errno = 0;
    }
    return __real_readdir(dir);
}

static int n_reads, read_at; /* The number of reads so far, and the read that fails, from 1; 0:
                              * none. */
static int read_errno = EIO;

WRAPPED(ssize_t, pread, (int fd, void *to, size_t n, off_t at))
{
    errno = read_errno;
    return read_at && ++n_reads == read_at ? -1 : __real_pread(fd, to, n, at);
}

static struct stat not_synced; /* The file whose sync failed. */
static atomic_int n_syncs;

WRAPPED(int, fsync, (int fd))
{
    if (atomic_fetch_add(&n_syncs, 1) + 1 == sync_at) {
        fstat(fd, &not_synced);
        errno = EIO;
        return -1;
    }
    if (is_fault())
        return -1;
    sync_log_fd(SYNC_SYNCED, fd);
    return __real_fsync(fd);
}

WRAPPED(int, linkat, (int from, const char *path, int to, const char *name, int flags))
{
    struct stat file, folder;
    if (is_fault() || __real_linkat(from, path, to, name, flags))
        return -1;
    assert_int_equal(fstatat(to, name, &file, 0) | fstat(to, &folder), 0);
    sync_log_add(SYNC_NAMED, &file, &folder);
    return 0;
}

WRAPPED(int, mkdir, (const char *path, mode_t mode))
{
    struct stat folder, above;
    char up[200];
    snprintf(up, sizeof up, "%s/..", path);
    if (is_fault() || __real_mkdir(path, mode))
        return -1;
    assert_int_equal(stat(path, &folder) | stat(up, &above), 0);
    sync_log_add(SYNC_SYNCED, &folder, NULL); /* There is nothing in it. */
    sync_log_add(SYNC_NAMED, &folder, &above);
    return 0;
}

static int lock_errno;            /* What the lock of a description fails with; 0: it does not. */
static void (*before_lock)(void); /* Called before a file is locked. */

WRAPPED(int, flock, (int fd, int how))
{
    if (before_lock && how & LOCK_EX) {
        void (*call)(void) = before_lock;
        before_lock = NULL;
        call();
    }
    if (!no_locks && !(lock_errno && how & LOCK_SH))
        return __real_flock(fd, how);
    errno = lock_errno ? lock_errno : ENOLCK;
    return -1;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static atomic_int n_allocations;
static int no_memory_at; /* The number of the allocation that fails, from 1; 0: none. */

static bool
is_memory_fault(void)
{
    return no_memory_at && atomic_fetch_add(&n_allocations, 1) + 1 == no_memory_at;
}

#define WRAP_MEMORY(type, call, parameters, arguments)                                             \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters                                                                  \
    {                                                                                              \
        return is_memory_fault() ? NULL : __real_##call arguments;                                 \
    }

WRAP_MEMORY(void *, malloc, (size_t n), (n))
WRAP_MEMORY(void *, calloc, (size_t n, size_t size), (n, size))
WRAP_MEMORY(void *, realloc, (void *p, size_t n), (p, n))
WRAP_MEMORY(char *, strdup, (const char *s), (s))

/* A part may be removed only when all names that were given so far are on the disk, the name of the
 * part in its place and the end of the part before it among them. */
static size_t removed_at; /* How many events there were before the last removal. */

static void
look_at_removal(int dir, const char *path)
{
    struct stat folder;
    if (!sync_logs || strncmp(path, "part-", 5) != 0)
        return;
    assert_int_equal(fstat(dir, &folder), 0);
    for (size_t i = 0; i < n_sync_events; i++)
        if (sync_events[i].kind == SYNC_NAMED &&
            !sync_log_has(folder.st_dev, folder.st_ino, i, n_sync_events))
            fail_msg("%s goes before the name of another is on the disk", path);
    if (removed_at && !sync_log_has(folder.st_dev, folder.st_ino, removed_at, n_sync_events))
        fail_msg("%s goes before the end of another is on the disk", path);
    removed_at = n_sync_events;
}

static void
no_faults(void)
{
    no_memory_at = 0;
    n_allocations = 0;
    n_calls = 0;
    fault_at = fault_errno = 0;
    disk_bytes = 0;
    fault_half = no_locks = false;
    lock_errno = 0;
    spoil = NULL;
    before_lock = NULL;
    n_syncs = n_reads = 0;
    removed_at = 0;
    sync_at = read_at = 0;
}

/* ---- a run ----------------------------------------------------------------------------------- */

enum { N_KEYS = 8, FAILED_KEY = 5 };
enum { DONE = 0, FAILED = 3, NO_MEMORY = 4, UNTOLD = 9 };

static qv_cache_layout layout = { .dtype = QV_BF16, .width = 8, .n_deepstack = 2 };

static qv_status
add_key(qv_cache_writer *w, int k, qv_error *err)
{
    qv_cache_entry *e = NULL;
    if (k != FAILED_KEY)
        return try_key(w, &layout, key_name(k), key_rows(k), err);
    qv_status s = qv_cache_begin(w, key_name(k), &some_source, 5, &e, err);
    if (!s)
        s = try_rows(e, &layout, key_name(k), 0, 2, err);
    if (!s)
        return try_finish(&e, QV_EFORMAT, "damaged", err);
    qv_cache_drop(&e);
    return s;
}

/* Does what `qwenvit cache` does with the first n keys: skips existing keys. */
static qv_status
run(const char *dir, int n, qv_error *err)
{
    qv_cache *there = NULL;
    qv_cache_info info = { .sealed = 0 };
    qv_cache_writer_options o = { .layout = layout, .part_bytes = 900 };
    if (!qv_cache_open(dir, &there, NULL))
        qv_cache_get_info(there, &info);
    o.after = info.sealed;
    qv_cache_writer *w = NULL;
    qv_status s = qv_cache_writer_open(dir, &o, &w, err);
    for (int k = 0; k < n && !s; k++)
        if (!there || qv_cache_compare(there, key_name(k), &some_source, QV_CACHE_TRUST_NOTHING) %
                              QV_CACHE_CHANGED ==
                          0)
            s = add_key(w, k, err);
    qv_error closing = { 0 };
    const qv_status closed = qv_cache_writer_close(&w, &closing);
    if (!s && closed)
        *err = closing;
    qv_cache_close(&there);
    return s ? s : closed;
}

/* How a run ended, as an exit code. A failure must come with an error text. */
static int
how_it_ended(qv_status s, const qv_error *err)
{
    const bool told = s && err->status == s && *err->text;
    return !s                                              ? DONE
           : told && s == QV_ENOMEM                        ? NO_MEMORY
           : told && s == QV_EIO && strchr(err->text, ':') ? FAILED
                                                           : UNTOLD;
}

static int
run_here(const char *dir, int n)
{
    qv_error err = { 0 };
    return how_it_ended(run(dir, n, &err), &err);
}

static int
add_all(const char *dir)
{
    return run_here(dir, N_KEYS);
}

/* Starts it in a separate process. */
static pid_t
start(int (*act)(const char *dir), const char *dir)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(act(dir));
    return pid;
}

/* Returns the exit code of the process, or minus the signal. */
static int
end_run(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void
run_undisturbed(const char *dir)
{
    no_faults();
    assert_int_equal(run_here(dir, N_KEYS), DONE);
}

/* ---- what must hold -------------------------------------------------------------------------- */

static void
count_records(const char *path, void *user)
{
    static const char text[] = "{\"key\":";
    struct file f = read_file(path);
    const char *p = f.data + records_at(&f), *end = f.data + front_bytes(&f);
    while ((p = memmem(p, (size_t)(end - p), text, sizeof text - 1)) != NULL) {
        ++*(int *)user;
        p++;
    }
}

/* Checks that all keys are there as if nothing had happened, and with `once` that each has one
 * record, which holds if no other run was at work. */
static void
check_cache(const char *dir, bool once)
{
    qv_cache *c = open_cache(dir);
    int records = 0;
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_damaged, 0);
    assert_int_equal(info.n_ok, N_KEYS - 1);
    assert_int_equal(info.n_failed, 1);
    for (int k = 0; k < N_KEYS; k++) {
        qv_cache_item item = find_item(c, key_name(k));
        assert_non_null(item.key);
        if (k == FAILED_KEY)
            assert_int_equal(item.status, QV_EFORMAT);
        else
            check_item(c, &item, key_rows(k));
    }
    check_all(c);
    close_cache(&c);
    validate_parts(dir);
    const int n_parts = each_part(dir, count_records, &records);
    assert_int_equal(temp_entries(dir),
                     n_parts + 1); /* One more for qwenvit-cache.json: nothing is left over. */
    if (once)
        assert_int_equal(records, N_KEYS);
}

/* Checks that everything in a cache that was left half done is undamaged. */
static void
check_rest(const char *dir)
{
    qv_cache *c = NULL;
    if (qv_cache_open(dir, &c, NULL)) /* qwenvit-cache.json was not there yet. */
        return;
    const qv_cache_info info = cache_info(c);
    assert_int_equal(info.n_damaged, 0);
    check_all(c);
    qv_cache_close(&c);
}

static int
set_up(void)
{
    no_faults();
    no_tmpfile = false;
    return tempdir_make();
}

static int
tear_down(void)
{
    no_faults();
    return tempdir_remove();
}

static const char *
fresh(void)
{
    static char dir[80];
    static int n;
    snprintf(dir, sizeof dir, "%s/%d", tempdir, n++);
    return dir;
}

/* ---- pruning --------------------------------------------------------------------------------- */

static const qv_cache_source newer = { .path = "clip.mp4", .bytes = 1000, .mtime_ns = 3000 };
enum { DROPPED_KEY = 6 };

static bool
is_newer(int k)
{
    return k % 3 == 1 || k == DROPPED_KEY;
}

static void
cut_copy(const char *path, void *user)
{
    char name[700];
    struct file f = read_file(path);
    snprintf(name, sizeof name, "%s/part-cut-00.safetensors", (const char *)user);
    put_file(name, f.data, f.bytes - 3);
}

/* Makes a cache with keys in several parts, newer versions of some keys after them, and a truncated
 * part. */
static const char *
make_prunable(void)
{
    const char *dir = fresh();
    run_undisturbed(dir);
    assert_true(each_part(dir, cut_copy, (void *)(uintptr_t)dir) > 3);
    qv_cache *c = open_cache(dir);
    const qv_cache_info info = cache_info(c);
    close_cache(&c);
    const qv_cache_writer_options o = { .layout = layout, .part_bytes = 900, .after = info.sealed };
    qv_cache_writer *w = NULL;
    assert_ok(qv_cache_writer_open(dir, &o, &w, ERR));
    for (int i = 0; i < 2; i++) { /* Parts that lose everything. */
        write_key(w, &layout, key_name(4), key_rows(4));
        assert_ok(qv_cache_seal(w, ERR));
    }
    for (int k = 0; k < N_KEYS; k++) {
        qv_cache_entry *e = NULL;
        if (!is_newer(k))
            continue;
        assert_ok(qv_cache_begin(w, key_name(k), &newer, key_rows(k), &e, ERR));
        put_rows(e, &layout, key_name(k), 0, key_rows(k));
        finish_key(&e, QV_OK, NULL);
    }
    close_writer(&w);
    return dir;
}

static bool keys_go = true; /* Whether a prune drops a key. */

static qv_status
prune(const char *dir, qv_error *err)
{
    static const char *const drop[] = { "clips/6.mp4" };
    const qv_cache_prune_options o = { .superseded = true, .drop = drop, .n_drop = keys_go };
    qv_cache_pruned n;
    return qv_cache_prune(dir, &o, &n, err);
}

static int
prune_here(const char *dir)
{
    qv_error err = { 0 };
    return how_it_ended(prune(dir, &err), &err);
}

/* Checks a cache at any moment of a prune: every key counts as it did, except that the dropped key
 * may be gone. An older version of a key never counts. */
static void
check_prunable(const char *dir, bool is_done)
{
    qv_cache *c = open_cache(dir);
    int records = 0;
    const qv_cache_info info = cache_info(c);
    for (int k = 0; k < N_KEYS; k++) {
        qv_cache_item item = find_item(c, key_name(k));
        if (k == DROPPED_KEY && (is_done || !item.key)) {
            assert_null(item.key);
            continue;
        }
        assert_non_null(item.key);
        assert_int_equal(item.mtime_ns, (is_newer(k) ? newer : some_source).mtime_ns);
        if (k == FAILED_KEY)
            assert_int_equal(item.status, QV_EFORMAT);
        else
            check_item(c, &item, key_rows(k));
    }
    check_all(c);
    close_cache(&c);
    const int n_parts = each_part(dir, is_done ? count_records : NULL, &records);
    if (!is_done)
        return;
    assert_int_equal(info.n_damaged + info.n_superseded, 0);
    assert_int_equal(records, N_KEYS - 1);
    assert_int_equal(temp_entries(dir), n_parts + 1);
    validate_parts(dir);
}

static int
prune_no_key(const char *dir)
{
    keys_go = false;
    const int code = prune_here(dir);
    keys_go = true;
    return code;
}

static void
check_key_there(const char *dir, bool is_done)
{
    check_prunable(dir, false);
}

static void
prune_undisturbed(const char *dir)
{
    no_faults();
    assert_int_equal(prune_here(dir), DONE);
    check_prunable(dir, true);
}

static void
check_added(const char *dir, bool is_done)
{
    if (is_done)
        check_cache(dir, true);
    else
        check_rest(dir);
}

static void
add_undisturbed(const char *dir)
{
    run_undisturbed(dir);
    check_cache(dir, true);
}

/* ---- each fault once ------------------------------------------------------------------------- */

/* What is disturbed: a run that adds, or a prune. */
static const struct subject {
    const char *name;
    const char *(*make)(void);
    int (*act)(const char *dir);
    void (*check)(const char *dir, bool is_done); /* at any moment, and once it is done */
    void (*repeat)(const char *dir);              /* undisturbed, so that all is as it should be */
} adding = { "adding", fresh, add_all, check_added, add_undisturbed },
  pruning = { "pruning", make_prunable, prune_here, check_prunable, prune_undisturbed },
  pruning_no_key = { "pruning no key", make_prunable, prune_no_key, check_key_there,
                     prune_undisturbed };

enum fault { KILL, FAIL, SYNC, READ, MEMORY };

/* Disturbs it at each call, from the first to the last. Which threads come first differs from run
 * to run, and so may the number of a call, but every number is tried. A failure is reported, or it
 * changes nothing; what is there stays, and the next run goes on. `with` is the errno of FAIL;
 * killed is a write half way, if it is not 0. Returns how many calls there were. */
static int
disturb(const struct subject *s, enum fault fault, int with)
{
    for (int at = 1;; at++) {
        no_faults();
        const char *dir = s->make();
        no_faults();
        *(fault == SYNC     ? &sync_at
          : fault == READ   ? &read_at
          : fault == MEMORY ? &no_memory_at
                            : &fault_at) = at;
        fault_errno = fault == FAIL ? with : 0;
        fault_half = fault == KILL ? with : at % 2;
        if (fault == SYNC && s == &adding)
            sync_log_begin();
        const int code = fault == KILL ? end_run(start(s->act, dir)) : s->act(dir);
        sync_logs = false;
        const bool reached = fault == KILL   ? code != DONE
                             : fault == FAIL ? n_calls >= at
                             : fault == SYNC ? n_syncs >= at
                             : fault == READ ? n_reads >= at
                                             : n_allocations >= at;
        no_faults();
        const int told = fault == KILL ? -SIGKILL : fault == MEMORY ? NO_MEMORY : FAILED;
        if ((code != DONE || (reached && fault == SYNC)) && !(reached && code == told))
            fail_msg("%s, call %d: ended with %d", s->name, at, code);
        for (size_t i = 0; fault == SYNC && s == &adding && i < n_sync_events; i++)
            if (sync_events[i].kind == SYNC_NAMED && S_ISREG(not_synced.st_mode) &&
                sync_events[i].inode == not_synced.st_ino)
                fail_msg("sync %d failed, and its file was given a name", at);
        s->check(dir, !reached);
        s->repeat(dir);
        remove_folder(dir);
        if (!reached) {
            print_message("%s: %d calls\n", s->name, at - 1);
            return at - 1;
        }
    }
}

TEST(test_kill_every_call)
{
    for (int half = 0; half < 2; half++) {
        no_tmpfile = !half;
        assert_true(disturb(&adding, KILL, half) > 30);
        assert_true(disturb(&pruning, KILL, half) > 30);
    }
}

TEST(test_fail_every_call)
{
    static const int errors[] = { EIO, ENOSPC };
    for (int named = 0; named < 2; named++) {
        no_tmpfile = named;
        disturb(&adding, FAIL, errors[named]);
        disturb(&pruning, FAIL, errors[named]);
    }
}

/* A file that was not synced has no name. */
TEST(test_sync_fails)
{
    for (int named = 0; named < 2; named++) {
        no_tmpfile = named;
        assert_true(disturb(&adding, SYNC, 0) > 5);
    }
    assert_true(disturb(&pruning, SYNC, 0) > 6);
}

/* What cannot be read now may be readable later. So no part is removed because its header or its
 * tokens cannot be read, and where a key is dropped, no older record of it comes back from such a
 * part. */
TEST(test_prune_cannot_read)
{
    assert_true(disturb(&pruning, READ, 0) > 30);
    assert_true(disturb(&pruning_no_key, READ, 0) > 30);
}

/* If any allocation fails, the error is a lack of memory. */
TEST(test_no_memory)
{
    disturb(&adding, MEMORY, 0);
    disturb(&pruning, MEMORY, 0);
    const char *dir = fresh();
    run_undisturbed(dir);
    int at = 1;
    for (bool reached = true; reached; at++) {
        qv_cache *c = NULL;
        qv_error err = { 0 };
        char *record = NULL;
        no_memory_at = at;
        n_allocations = 0;
        qv_status s = qv_cache_open(dir, &c, &err);
        if (!s)
            s = qv_cache_verify(c, 0, &err);
        if (!s)
            s = qv_cache_record(c, 0, &record, &err);
        if (c)
            qv_cache_compare(c, key_name(0), &some_source, QV_CACHE_TRUST_NOTHING);
        reached = n_allocations >= at;
        no_memory_at = 0;
        if (s && (s != QV_ENOMEM || err.status != s))
            fail_msg("allocation %d: %s: %s", at, qv_status_name(s), err.text);
        free(record);
        qv_cache_close(&c);
    }
    print_message("%d of reading\n", at);
}

/* ---- the order in which the disk has it ------------------------------------------------------ */

/* A part's bytes are on the disk before the part has its name, and its folder is on the disk before
 * that is reported. */
TEST(test_order)
{
    for (int named = 0; named < 2; named++) {
        const char *dir = fresh();
        no_tmpfile = named;
        sync_log_begin();
        qv_cache_writer *w = open_writer(dir, &layout, 1300);
        assert_int_equal(sync_log_end(), 2); /* The folder and the file that describes it. */
        for (int k = 0; k < 3; k++) {
            sync_log_begin();
            assert_ok(add_key(w, k, ERR));
            assert_ok(qv_cache_seal(w, ERR));
            assert_int_equal(sync_log_end(), 1);
        }
        sync_log_begin();
        assert_ok(add_key(w, 3, ERR));
        close_writer(&w);
        assert_int_equal(sync_log_end(), 1);
    }
}

/* A process that made the folder ended before the folder was synced, so the next process syncs
 * it. */
TEST(test_order_of_others)
{
    const char *dir = fresh();
    struct stat above;
    assert_int_equal(__real_mkdir(dir, 0777) | stat(tempdir, &above), 0);
    sync_log_begin();
    qv_cache_writer *w = open_writer(dir, &layout, 0);
    assert_int_equal(sync_log_end(), 1);
    assert_true(sync_log_has(above.st_dev, above.st_ino, 0, n_sync_events));
    close_writer(&w);
}

TEST(test_prune_order)
{
    for (int named = 0; named < 2; named++) {
        no_tmpfile = named;
        const char *dir = make_prunable();
        no_faults();
        sync_log_begin();
        assert_int_equal(prune_here(dir), DONE);
        assert_true(sync_log_end() > 2);
        check_prunable(dir, true);
    }
}

static const char *pruned_dir;

static void
prune_it(void)
{
    assert_int_equal(prune_here(pruned_dir), DONE);
}

/* A prune runs after a reader has listed the folder and before it opens a part that is pruned. The
 * reader has all keys, and a part that is only gone does not count as damaged. */
TEST(test_prune_beside_open)
{
    bool reached = true;
    keys_go = false;
    for (int at = 1; reached; at++) {
        no_faults();
        const char *dir = pruned_dir = make_prunable();
        qv_cache_info before, info;
        qv_cache *c = open_cache(dir);
        qv_cache_get_info(c, &before);
        close_cache(&c);
        look_away = prune_it;
        n_names = 0;
        look_away_at = at;
        c = open_cache(dir);
        reached = !look_away_at;
        look_away_at = 0;
        qv_cache_get_info(c, &info);
        assert_int_equal(info.n_ok, before.n_ok);
        assert_int_equal(info.n_failed, before.n_failed);
        if (qv_cache_damage(c, 0, NULL)) /* As it was before. */
            assert_non_null(strstr(qv_cache_damage(c, 0, NULL), "/part-cut-"));
        assert_null(qv_cache_damage(c, 1, NULL));
        for (int64_t i = 0; i < info.n_parts; i++)
            assert_true(i < 1 || strcmp(qv_cache_part(c, i - 1), qv_cache_part(c, i)) < 0);
        check_all(c);
        close_cache(&c);
        check_prunable(dir, false);
        remove_folder(dir);
    }
    keys_go = true;
}

TEST(test_prune_full_disk)
{
    const char *dir = make_prunable();
    no_faults();
    disk_bytes = 4500; /* Room for a header and the first tensors. */
    expect_error(QV_EIO, "No space left", prune(dir, ERR));
    no_faults();
    check_prunable(dir, false);
    no_locks = true;
    expect_error(QV_EUNSUPPORTED, "cannot be locked here|--no-lock", prune(dir, ERR));
    const qv_cache_prune_options o = { .superseded = true, .no_lock = true };
    qv_cache_pruned n;
    assert_ok(qv_cache_prune(dir, &o, &n, ERR));
    check_prunable(dir, false);
    prune_undisturbed(dir);
}

static void
cut_end(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(__real_ftruncate(fd, st.st_size - 1), 0);
}

static void
lose_header(int fd)
{
    assert_int_equal(__real_pwrite(fd, "\0\0\0\0\0\0\0\0", 8, 0), 8);
}

/* A disk that silently corrupts written data destroys no old part: a part is read back before it is
 * renamed. */
TEST(test_prune_reads_back)
{
    static void (*const spoils[])(int) = { cut_end, lose_header };
    keys_go = false;
    for (int i = 0; i < 2; i++) {
        const char *dir = make_prunable();
        const int n_parts = each_part(dir, NULL, NULL);
        qv_cache_pruned n;
        const qv_cache_prune_options o = { .superseded = true };
        spoil = spoils[i];
        assert_ok(qv_cache_prune(dir, &o, &n, ERR));
        assert_true(n.left > 0 && n.rewritten == 0);
        assert_int_equal(each_part(dir, NULL, NULL), n_parts - n.removed - n.broken);
        check_prunable(dir, false);
        no_faults();
        /* A run that adds does not name such a part either. */
        qv_cache_writer *w = open_writer(dir, &layout, 0);
        write_key(w, &layout, "k", 2);
        const int before = temp_entries(dir);
        spoil = spoils[i];
        expect_error(QV_ESTATE, "", qv_cache_writer_close(&w, ERR));
        no_faults();
        assert_true(temp_entries(dir) <= before);
        assert_int_equal(each_part(dir, NULL, NULL), n_parts - n.removed - n.broken);
    }
    keys_go = true;
}

/* ---- disks and companions -------------------------------------------------------------------- */

/* Two keys are open when the disk fills up, at any byte of either, and are given up in either
 * order. Earlier finished keys are sealed, because the room for their header was reserved; no more
 * keys are added. */
TEST(test_full_disk)
{
    for (int more = 0; more < 40; more++) {
        const char *dir = fresh();
        qv_error err = { 0 };
        qv_cache_writer *w = open_writer(dir, &layout, 0);
        qv_status s = QV_OK;
        int k = 0, n_done = 0;
        disk_bytes = (256 << 10) + 1000 + more * SECTOR;
        for (; !s && k < 100; k += 2) {
            qv_cache_entry *e[2] = { NULL };
            for (int i = 0; i < 2 && !s; i++)
                s = qv_cache_begin(w, key_name(k + i), &some_source, 5, &e[i], &err);
            for (int i = 1; i >= 0 && !s; i--)
                s = try_rows(e[i], &layout, key_name(k + i), 0, 5, &err);
            for (int i = 0; i < 2; i++) {
                qv_cache_entry **one = &e[more % 2 ? i : 1 - i];
                const qv_status one_s = s ? s : try_finish(one, QV_OK, NULL, &err);
                n_done += !one_s;
                qv_cache_drop(one);
                s = one_s;
            }
        }
        expect_failure("put", QV_EIO, "No space left", s, &err);
        assert_true(n_done > 0);
        expect_error(QV_EIO, "No space left", try_key(w, &layout, "k", 5, ERR));
        expect_error(QV_EIO, "No space left", qv_cache_writer_close(&w, ERR));
        assert_null(w);
        no_faults();
        qv_cache *c = open_cache(dir);
        const qv_cache_info info = cache_info(c);
        if (info.n_ok != n_done || info.n_damaged)
            fail_msg("%d: %lld keys of %d", more, (long long)info.n_ok, n_done);
        check_all(c);
        close_cache(&c);
    }
}

/* Two simultaneous runs with the same keys waste work but do no harm. */
TEST(test_two_at_once)
{
    for (int i = 0; i < 20; i++) {
        const char *dir = fresh();
        no_tmpfile = i % 2;
        const pid_t one = start(add_all, dir), two = start(add_all, dir);
        if (i % 3 == 2)
            kill(two, SIGKILL);
        assert_int_equal(end_run(one), DONE);
        end_run(two);
        run_undisturbed(dir);
        check_cache(dir, false);
        remove_folder(dir);
    }
}

/* A process that is alive keeps its files, whoever else begins. */
TEST(test_sweep)
{
    const char *dir = fresh();
    no_tmpfile = true;
    qv_cache_writer *w = open_writer(dir, &layout, 0);
    qv_cache_entry *e = NULL;
    assert_ok(qv_cache_begin(w, "mine", &some_source, 2, &e, ERR));
    assert_int_equal(temp_entries(dir), 2);
    run_undisturbed(dir);
    qv_cache_writer *second = open_writer(dir, &layout, 0);
    close_writer(&second);
    put_rows(e, &layout, "mine", 0, 2);
    finish_key(&e, QV_OK, NULL);
    close_writer(&w);
    /* One file belongs to another host and one to no process; only the second may be removed. */
    char host[60] = "", path[200];
    gethostname(host, sizeof host - 1);
    const pid_t gone = start(add_all, fresh());
    assert_int_equal(end_run(gone), DONE);
    snprintf(path, sizeof path, "%s/.qwenvit-tmp-other-%ld-0", dir, (long)gone);
    put_file(path, "x", 1);
    snprintf(path, sizeof path, "%s/.qwenvit-tmp-%s-%ld-0", dir, host, (long)gone);
    put_file(path, "x", 1);
    const int before = temp_entries(dir);
    w = open_writer(dir, &layout, 0);
    close_writer(&w);
    assert_int_equal(temp_entries(dir), before - 1);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* The file system has neither O_TMPFILE nor locks, and one process has two writers. The second
 * writer leaves the first one's part alone, and removes what a process of the same number (in
 * another container) left; without locks, once that is old. */
TEST(test_two_writers)
{
    for (int i = 0; i < 2; i++) {
        const char *dir = fresh();
        char host[60] = "", path[200];
        no_tmpfile = true;
        no_locks = i;
        qv_cache_writer *w = open_writer(dir, &layout, 0), *second = NULL;
        qv_cache_entry *e = NULL;
        assert_ok(qv_cache_begin(w, "mine", &some_source, 2, &e, ERR));
        gethostname(host, sizeof host - 1);
        snprintf(path, sizeof path, "%s/.qwenvit-tmp-%s-%ld-0123456712", dir, host, (long)getpid());
        put_file(path, "x", 1);
        if (no_locks) { /* It may be in use by a process that is invisible from here. */
            const struct timespec old[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
            second = open_writer(dir, &layout, 0);
            close_writer(&second);
            assert_int_equal(temp_entries(dir), 3);
            assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        }
        second = open_writer(dir, &layout, 0);
        assert_int_equal(temp_entries(dir), 2);
        assert_int_not_equal(access(path, F_OK), 0);
        close_writer(&second);
        put_rows(e, &layout, "mine", 0, 2);
        finish_key(&e, QV_OK, NULL);
        close_writer(&w);
        qv_cache *c = open_cache(dir);
        qv_cache_item item = find_item(c, "mine");
        check_item(c, &item, 2);
        close_cache(&c);
        assert_int_equal(temp_entries(dir), 2);
        no_locks = false;
    }
}

/* ---- locks ----------------------------------------------------------------------------------- */

static char warnings[600];

static void
warn(void *user, const char *words)
{
    assert_ptr_equal(user, warnings);
    snprintf(warnings, sizeof warnings, "%s", words);
}

/* A run continues without a lock only on a file system that has no locks, and reports it. */
TEST(test_lock_errors)
{
    static const struct {
        int error;
        bool goes_on;
    } cases[] = {
        { ENOLCK, true }, { ENOSYS, true }, { EOPNOTSUPP, true }, { EINVAL, true },
        { EIO, false },   { EINTR, false }, { ESTALE, false },    { 0, true },
    };
    EACH (c, cases) {
        const char *dir = fresh();
        const qv_cache_writer_options o = { .layout = layout, .told = warn, .user = warnings };
        qv_cache_writer *w = NULL;
        qv_error err = { 0 };
        lock_errno = c->error;
        *warnings = 0;
        const qv_status s = qv_cache_writer_open(dir, &o, &w, &err);
        if (s != (c->goes_on ? QV_OK : QV_EIO))
            fail_msg("%s: %s", strerror(c->error), s ? err.text : "it goes on");
        if (s)
            expect_failure("lock", QV_EIO, "qwenvit-cache.json cannot be locked", s, &err);
        else if (c->error)
            assert_non_null(strstr(warnings, "files cannot be locked here"));
        else
            assert_string_equal(warnings, "");
        qv_cache_writer_close(&w, NULL);
        no_faults();
    }
}

/* Running out of file descriptors, or losing the file server, is an error wherever it happens, and
 * never makes a part seem damaged. */
TEST(test_what_is_away_for_now)
{
    static const struct {
        int error;
        qv_status status;
    } cases[] = {
        { EMFILE, QV_ENOMEM },      { ENFILE, QV_ENOMEM },     { ENOMEM, QV_ENOMEM },
        { ESTALE, QV_EBACKEND },    { ENOTCONN, QV_EBACKEND }, { ETIMEDOUT, QV_EBACKEND },
        { EHOSTDOWN, QV_EBACKEND },
    };
    const char *dir = fresh();
    run_undisturbed(dir);
    EACH (one, cases) {
        const qv_cache_writer_options o = { .layout = layout };
        const char *words = strerror(one->error);
        qv_cache_writer *w = NULL;
        qv_cache *c = NULL;
        not_opened_errno = read_errno = one->error;
        not_opened = "qwenvit-cache.json"; /* no run goes on without a lock */
        expect_error(one->status == QV_ENOMEM ? QV_ENOMEM : QV_EIO, words,
                     qv_cache_writer_open(dir, &o, &w, ERR));
        not_opened = "part-";
        expect_error(one->status, words, qv_cache_open(dir, &c, ERR));
        not_listed = true;
        expect_error(one->status, words, qv_cache_open(dir, &c, ERR));
        not_listed = false;
        not_opened = NULL;
        n_reads = 0;
        read_at = 1;
        expect_error(one->status, words, qv_cache_open(dir, &c, ERR));
        read_at = 0;
    }
    read_errno = EIO;
    check_cache(dir, true);
}

/* ---- a sweep between creation and lock ------------------------------------------------------- */

static const char *swept_dir;
static char swept_path[400];
static int swept_fd; /* The sweeper's descriptor. */
static bool sweeps_slowly;

static void
end_sweep(void)
{
    assert_int_equal(unlink(swept_path), 0);
    close(swept_fd);
}

/* Does what the sweep of another container with this host's name does: the file that was just made
 * seems to be a dead process's, and nobody has locked it. */
static void
sweep_as_another(void)
{
    DIR *d = opendir(swept_dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = __real_readdir(d)) != NULL;)
        if (!strncmp(e->d_name, ".qwenvit-tmp-", 13)) {
            snprintf(swept_path, sizeof swept_path, "%.100s/%.255s", swept_dir, e->d_name);
            swept_fd = __real_open(swept_path, O_RDONLY | O_CLOEXEC);
        }
    closedir(d);
    assert_int_equal(__real_flock(swept_fd, LOCK_EX | LOCK_NB), 0);
    if (!sweeps_slowly)
        end_sweep();
}

/* A file that another container's sweep takes before it is locked is made again. */
TEST(test_swept_before_lock)
{
    for (int slowly = 0; slowly < 2; slowly++) {
        const char *dir = fresh();
        qv_error err = { 0 };
        no_tmpfile = true;
        run_undisturbed(dir);
        qv_cache_writer *w = open_writer(dir, &layout, 0);
        swept_dir = dir;
        sweeps_slowly = slowly;
        swept_fd = -1;
        before_lock = sweep_as_another;
        assert_ok(try_key(w, &layout, "another", 3, ERR));
        assert_true(swept_fd >= 0);
        if (slowly)
            end_sweep();
        if (qv_cache_writer_close(&w, &err))
            fail_msg("%s: %s", slowly ? "during the sweep" : "after the sweep", err.text);
        qv_cache *c = open_cache(dir);
        qv_cache_item item = find_item(c, "another");
        assert_non_null(item.key);
        close_cache(&c);
        assert_int_equal(temp_entries(dir), each_part(dir, NULL, NULL) + 1);
        no_tmpfile = false;
    }
}

TEST_EACH(set_up, tear_down);
