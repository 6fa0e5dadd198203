/*
 * Starts a program behind the system call filter of a systemd unit, where no systemd runs:  confine PROGRAM ARGUMENT...
 *
 * The calls that are allowed stand in "allowed.h", which a test writes from what systemd-analyze lists: one line
 * ALLOW(__NR_name) a call. Unlike the unit, which answers EPERM, any other call ends the program, so that none goes unseen.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "name the architecture here"
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define END(how) BPF_STMT(BPF_RET | BPF_K, how)
/* The next instruction is skipped for any other call. */
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), END(SECCOMP_RET_ALLOW),

int main(int argc, char **argv) {
    struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0),
        END(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
#include "allowed.h"
        END(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (argc < 2) return 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("confine");
        return 1;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}
