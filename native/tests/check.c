/* One snippet a family of calls: `check NAME` runs it in this process, `check --list` names them.

   Each is run under a limit of 64 MiB (tests/partition says so), on a card with contexts of 0 bytes
   unless told. The driver's ledger must agree with what berth accounts, to the byte, after every
   step; a claim that does not hold ends the process with 1. */
#include "check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) { #name, test_##name },
#include "check_list.h"
#undef TEST
};

int main(int count, char **words)
{
    bool list = count == 2 && strcmp(words[1], "--list") == 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (list) {
            puts(tests[i].name);
        } else if (count == 2 && strcmp(words[1], tests[i].name) == 0) {
            tests[i].run();
            return 0;
        }
    }
    return list ? 0 : 2;
}
