/* Launches one kernel as fast as it is let, for some seconds: `partition_shares KERNEL BLOCKS SECONDS [sync] [after_MS]`. Several
   kernels, separated by commas, are launched in turns; with `after_MS` it starts so much later and ends with the
   others. With `window_MS` it also prints the least and the most that it used in one of the windows that follow each other.

   With `grids` each launch has one block more than the last, with `graphs` each is a graph of its own, and with `depth_N`
   the program waits for every N-th launch (64). With `launches_N` it ends after N launches and waits for them, with
   `abandons` too it does not wait, with `dies` it is killed 200 ms after them; all end without counting, as a short program of many does.

   Prints the GPU time that the driver saw, as a fraction of the time that passed, and the longest launch call. The first
   tenth of the time is not counted. With `sync` the program waits for each launch, as an interactive one does. */
#include "../native/tests/driver.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now); /* the fake card's */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int count, char **words)
{
    CUcontext context;
    CUmodule module;
    CUfunction functions[8];
    unsigned kinds = 0;
    int sync = 0, late_ms = 0, window_ms = 0, grids = 0, graphs = 0, depth = 64, few = 0, abandons = 0, dies = 0;
    CUstream stream = NULL;
    CUgraph graph;
    CUexec exec;
    for (int i = 4; i < count; i++) {
        sync = sync || strcmp(words[i], "sync") == 0;
        sscanf(words[i], "after_%d", &late_ms);
        sscanf(words[i], "window_%d", &window_ms);
        sscanf(words[i], "depth_%d", &depth);
        sscanf(words[i], "launches_%d", &few);
        grids = grids || strcmp(words[i], "grids") == 0;
        graphs = graphs || strcmp(words[i], "graphs") == 0;
        abandons = abandons || strcmp(words[i], "abandons") == 0;
        dies = dies || strcmp(words[i], "dies") == 0;
    }
    if (late_ms != 0)
        nanosleep(&(struct timespec){ late_ms / 1000, late_ms % 1000 * 1000000 }, NULL);
    if (count < 4 || cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuModuleLoadData(&module, "") != CUDA_SUCCESS)
        return 3;
    for (char *name = strtok(words[1], ","); name != NULL && kinds < 8; name = strtok(NULL, ","))
        if (cuModuleGetFunction(&functions[kinds++], module, name) != CUDA_SUCCESS)
            return 3;
    unsigned blocks = (unsigned)atoi(words[2]);
    if (graphs && (cuStreamCreate(&stream, 0) != CUDA_SUCCESS || cuStreamBeginCapture_v2(stream, 2) != CUDA_SUCCESS ||
                   cuLaunchKernel(functions[0], blocks, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS ||
                   cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS))
        return 3;
    for (int i = 0; i < few; i++)
        if (cuLaunchKernel(functions[0], blocks + (grids ? (unsigned)i : 0), 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS)
            return 4;
    if (few != 0 && dies) {
        nanosleep(&(struct timespec){ 0, 200 * 1000000 }, NULL);
        raise(SIGKILL);
    }
    if (few != 0 && abandons) {
        nanosleep(&(struct timespec){ 0, 50 * 1000000 }, NULL);
        return 0;
    }
    if (few != 0)
        _exit(cuCtxSynchronize() == CUDA_SUCCESS ? 0 : 5);
    double seconds = atof(words[3]) - late_ms / 1e3;
    uint64_t begin = now_ns(), warm = begin + (uint64_t)(seconds * 1e8), end = begin + (uint64_t)(seconds * 1e9);
    uint64_t counted_from = 0, busy_from = 0, longest = 0, launches = 0, window_from = 0, window_busy = 0;
    double least = 100, most = 0;
    for (uint64_t now = begin; now < end; launches++) {
        if (counted_from == 0 && now >= warm) {
            counted_from = now;
            busy_from = fake_own_busy_ns(0);
            longest = 0;
            window_from = now;
            window_busy = busy_from;
        }
        if (window_ms != 0 && window_from != 0 && now >= window_from + (uint64_t)window_ms * 1000000) {
            double share = 100.0 * (double)(fake_own_busy_ns(0) - window_busy) / (double)(now - window_from);
            least = share < least ? share : least;
            most = share > most ? share : most;
            window_from = now;
            window_busy = fake_own_busy_ns(0);
        }
        if (graphs && (cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS || cuGraphLaunch(exec, stream) != CUDA_SUCCESS))
            return 4;
        if (!graphs && cuLaunchKernel(functions[launches % kinds], blocks + (grids ? (unsigned)launches : 0), 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS)
            return 4;
        uint64_t after = now_ns();
        longest = after - now > longest ? after - now : longest;
        if ((sync || launches % (unsigned)depth == (unsigned)depth - 1) && cuStreamSynchronize(stream) != CUDA_SUCCESS)
            return 5;
        now = now_ns();
    }
    double passed = (double)(now_ns() - counted_from);
    printf("{\"share_pct\": %.2f, \"longest_launch_ms\": %.3f, \"launches\": %llu, \"least_pct\": %.2f, \"most_pct\": %.2f}\n",
           100.0 * (double)(fake_own_busy_ns(0) - busy_from) / passed, (double)longest / 1e6, (unsigned long long)launches, least, most);
    return 0;
}
