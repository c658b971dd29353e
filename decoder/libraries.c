/* SPDX-License-Identifier: MIT */
/* Makes forks cheap. FFmpeg depends on more than a hundred libraries, and the loader writes to the
 * data of each. Every fork would copy the page tables of all this data, and free them when it ends.
 * The data is therefore mapped anew from a file, whose page tables are not copied. */
#include "decoder.h"

#ifdef __linux__
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copies a library's data to the file and maps them from there: private, and read-only where they
 * were. */
static int
map_from_file(struct dl_phdr_info *library, size_t size, void *file)
{
    const int fd = *(int *)file;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &library->dlpi_phdr[i];
        const uintptr_t begin = library->dlpi_addr + p->p_vaddr, from = begin & -page;
        const size_t bytes = ((begin + p->p_filesz + page - 1) & -page) - from;
        const size_t fixed = ((begin + p->p_memsz) & -page) - from; /* rounded as in the loader */
        const off_t at = lseek(fd, 0, SEEK_END);
        bool done = true;
        if (p->p_type == PT_LOAD && p->p_flags == (PF_R | PF_W) &&
            write(fd, (void *)from, bytes) == (ssize_t)bytes)
            done = mmap((void *)from, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd,
                        at) != MAP_FAILED;
        else if (p->p_type == PT_GNU_RELRO &&
                 fixed) /* is listed after the data that it is part of */
            done = !mprotect((void *)from, fixed, PROT_READ);
        if (!done)
            _exit(1); /* the old mapping may be gone, so the process cannot continue */
    }
    return 0;
}

/* Returns whether this process has only one thread: a thread started by a library could write to
 * the data meanwhile. The folder has two more links than threads, and may still list an exited
 * thread. */
static bool
is_alone(void)
{
    struct stat threads;
    for (int i = 0; i < 10 && !stat("/proc/self/task", &threads); i++) {
        if (threads.st_nlink == 3)
            return true;
        usleep(1000);
    }
    return false;
}

void
qvm_share_libraries(void)
{
    if (QVM_SANITIZED || !is_alone())
        return;
    int fd = qvm_shared_memory();
    if (fd < 0)
        return;
    signal(SIGXFSZ, SIG_IGN); /* the caller may have limited file sizes */
    dl_iterate_phdr(map_from_file, &fd);
    signal(SIGXFSZ, SIG_DFL);
    close(fd);
}

#else

void
qvm_share_libraries(void)
{
}

#endif
