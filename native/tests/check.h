/* The families of calls, each a snippet; on_device is where most of it lies. */
#ifndef BERTH_CHECK_H
#define BERTH_CHECK_H
#include "claims.h"

#include <unistd.h>

static const CUalloc_prop on_device __attribute__((unused)) = { .type = 1, .location = { 1, 0 } };
static const CUalloc_prop for_tiles
    __attribute__((unused)) = { .type = 1, .location = { 1, 0 }, .usage = CU_FOR_TILES };

#define TEST(name) void test_##name(void);
#include "check_list.h"
#undef TEST

#endif
