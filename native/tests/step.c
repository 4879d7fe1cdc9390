/* A process is killed after every single instruction of an allocation and a free: `step LIBRARY
   FOLDER UUID`.

   One is started for each instruction, stepped so far and killed. Every other time somebody else
   changes the total in between, before anybody looks for the dead. Then what the region accounts
   for, and what the driver holds, must be nothing, and only the one who looks on must be left.
   Prints how many instructions there were. */
#include "claims.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_ENOUGH = 60000 }; /* looks, 2 ms apart */
typedef int describe_call(const char *, const char *, char *, size_t);

/* Does what it is told: `c` changes the total and back, `l` says whether the driver holds anything.
 */
static void look_on(int orders, int answers)
{
    char order;
    start();
    if (write(answers, "s", 1) != 1)
        _exit(3);
    while (read(orders, &order, 1) == 1) {
        CUdeviceptr a;
        char answer = 'y';
        if (order == 'c' &&
            (cuMemAlloc_v2(&a, 3) != CUDA_SUCCESS || cuMemFree_v2(a) != CUDA_SUCCESS))
            answer = 'n';
        if (order == 'l' && fake_used_bytes(0) != 0)
            answer = 'n';
        if (write(answers, &answer, 1) != 1)
            _exit(4);
    }
    _exit(0);
}

static pid_t begin_stepped(void)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    CUdeviceptr a = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start();
    if (cuMemAlloc_v2(&a, 1) != CUDA_SUCCESS || cuMemFree_v2(a) != CUDA_SUCCESS ||
        ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(3);
    raise(SIGSTOP);
    if (cuMemAlloc_v2(&a, 5 * MIB) != CUDA_SUCCESS || cuMemFree_v2(a) != CUDA_SUCCESS)
        _exit(5);
    raise(SIGSTOP);
    _exit(0);
}

/* True where the end was reached before so many steps. */
static void step(pid_t child, long steps, bool *ended)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    *ended = false;
    for (long i = 0; i < steps && !*ended; i++) {
        CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        *ended = WSTOPSIG(status) == SIGSTOP;
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

int main(int count, char **words)
{
    int orders[2], answers[2];
    char answer;
    static char text[1 << 20];
    if (count != 4)
        return 2;
    void *library = dlopen(words[1], RTLD_NOW);
    describe_call *describe =
        library != NULL ? (describe_call *)dlsym(library, "berth_describe") : NULL;
    CHECK(describe != NULL && pipe(orders) == 0 && pipe(answers) == 0);
    pid_t other = fork();
    if (other == 0) {
        close(orders[1]);
        close(answers[0]);
        look_on(orders[0], answers[1]);
    }
    CHECK(read(answers[0], &answer, 1) == 1);
    bool ended = false;
    long steps = 0;
    for (; !ended; steps++) {
        step(begin_stepped(), steps, &ended);
        if (steps % 2 != 0)
            CHECK(write(orders[1], "c", 1) == 1 && read(answers[0], &answer, 1) == 1 &&
                  answer == 'y');
        /* Somebody who reads its /proc may keep its memory a moment longer. */
        for (int tries = 0;; tries++) {
            CHECK(describe(words[2], words[3], text, sizeof text) == 0);
            const char *first = strstr(text, "{\"pid\": ");
            if (strstr(text, "\"used_bytes\": 0,") != NULL && first != NULL &&
                strstr(first + 1, "{\"pid\": ") == NULL)
                break;
            if (tries == LONG_ENOUGH)
                printf("after %ld instructions: %.400s\n", steps, text);
            CHECK(tries < LONG_ENOUGH);
            usleep(2000);
        }
        CHECK(write(orders[1], "l", 1) == 1 && read(answers[0], &answer, 1) == 1 && answer == 'y');
    }
    kill(other, SIGKILL);
    printf("%ld\n", steps - 1);
    return 0;
}
