/* What a test claims, and where a claim failed. */
#ifndef BERTH_CLAIM_H
#define BERTH_CLAIM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

/* Ends the process where the claim does not hold. */
static inline void claim(bool truth, const char *file, int line, const char *text)
{
    if (truth)
        return;
    printf("%s:%d: %s\n", file, line, text);
    fflush(stdout);
    _exit(1);
}

#define CHECK(truth) claim((truth), __FILE__, __LINE__, #truth)

#endif
