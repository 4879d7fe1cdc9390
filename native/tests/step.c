/* A process is killed after any instruction of an allocation and a free: `step LIBRARY FOLDER
   UUID`.

   All that a killed process leaves is in the memory that it shares: the region's and the card's. So
   a first process is stepped through all of it, to see which instructions change that memory. For
   each of them, and for every 16th of the others, a process is stepped so far and killed, twice:
   the second time another process changes the total before anything looks for the dead. Then the
   region must account for nothing, the driver must hold nothing, and only the process that looks on
   must be left. Prints how many instructions there were and after how many a process was killed. */
#include "claims.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LONG_ENOUGH = 60000, /* looks, 2 ms apart */
    MOST_STEPS = 100000,
    SAMPLE = 16,
    SHARED = 2,
    SHARED_BYTES = 128 << 10, /* of each file: what three processes use lies before */
};
static const char *shared[SHARED];
static char seen[SHARED][SHARED_BYTES];
static bool changes[MOST_STEPS];
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

static void map_shared(const char *path, int at)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, SHARED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    shared[at] = memory;
    close(fd);
}

/* Whether the shared memory differs from when this was last asked. */
static bool changed(void)
{
    bool differs = false;
    for (int i = 0; i < SHARED; i++)
        if (memcmp(seen[i], shared[i], SHARED_BYTES) != 0) {
            memcpy(seen[i], shared[i], SHARED_BYTES);
            differs = true;
        }
    return differs;
}

/* How many instructions were stepped: `most`, or fewer where the end came before. */
static long step(pid_t child, long most, bool survey)
{
    int status;
    long steps = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    for (changed(); steps < most; steps++) {
        CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP)
            break;
        if (survey)
            changes[steps + 1] = changed();
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    return steps;
}

int main(int count, char **words)
{
    int orders[2], answers[2];
    char answer;
    static char text[1 << 20];
    char path[512];
    if (count != 4 || getenv("BERTH_FAKE_CARD") == NULL)
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
    CHECK((size_t)snprintf(path, sizeof path, "%s/%s.use", words[2], words[3]) < sizeof path);
    map_shared(path, 0);
    map_shared(getenv("BERTH_FAKE_CARD"), 1);
    long steps = step(begin_stepped(), MOST_STEPS - 1, true), kills = 0;
    CHECK(steps < MOST_STEPS - 1);
    for (long run = 0; run <= 2 * steps + 1; run++) {
        long at = run / 2;
        if (!changes[at] && at % SAMPLE != 0)
            continue;
        kills += run % 2 == 0;
        /* One process takes a few instructions fewer than another. */
        CHECK(step(begin_stepped(), at, false) == at || steps - at < SAMPLE);
        if (run % 2 != 0)
            CHECK(write(orders[1], "c", 1) == 1 && read(answers[0], &answer, 1) == 1 &&
                  answer == 'y');
        /* A process that reads its /proc may keep its memory a moment longer. */
        for (int tries = 0;; tries++) {
            CHECK(describe(words[2], words[3], text, sizeof text) == 0);
            const char *first = strstr(text, "{\"pid\": ");
            if (strstr(text, "\"used_bytes\": 0,") != NULL && first != NULL &&
                strstr(first + 1, "{\"pid\": ") == NULL)
                break;
            if (tries == LONG_ENOUGH)
                printf("after %ld instructions: %.400s\n", at, text);
            CHECK(tries < LONG_ENOUGH);
            usleep(2000);
        }
        CHECK(write(orders[1], "l", 1) == 1 && read(answers[0], &answer, 1) == 1 && answer == 'y');
    }
    kill(other, SIGKILL);
    printf("%ld %ld\n", steps, kills);
    return 0;
}
