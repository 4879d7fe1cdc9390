/* One snippet a hook: `hooks NAME` runs it, `hooks --null NAME` calls the hook with nothing but
   zeros, `hooks --list` names them.

   The table is made of the list of hooks itself, so that a hook without a snippet does not compile.
   Each is run under a limit of 64 MiB on a card of its own whose contexts and modules take nothing
   (tests/partition says so): what takes memory is refused above the limit and counted to the byte
   below it, what frees gives back, what tells of the card tells of the limit, and what runs kernels
   runs them. */
#include "snippets.h"

#include <string.h>

typedef int any_call(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                     uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static const struct {
    const char *name;
    void (*run)(void);
    void *hook;
} table[] = {
#define HOOK(name, params) { #name, snippet_##name, (void *)name },
#define NVHOOK(name, params) { #name, snippet_##name, (void *)name },
#include "../hooks.h"
};

/* As a program that forgot its arguments: an answer, whatever it is, and the books in order. */
static void with_zeros(void *hook)
{
    NVdevice device;
    start();
    nvml_device(&device);
    ((any_call *)hook)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    start();
    HELD(0);
}

int main(int count, char **words)
{
    bool list = count == 2 && strcmp(words[1], "--list") == 0,
         zeros = count == 3 && strcmp(words[1], "--null") == 0;
    if (count == 2 && strcmp(words[1], "--neighbour") == 0) {
        neighbour();
        return 0;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (list) {
            puts(table[i].name);
        } else if (count >= 2 && strcmp(words[count - 1], table[i].name) == 0) {
            if (zeros)
                with_zeros(table[i].hook);
            else
                table[i].run();
            return 0;
        }
    }
    return list ? 0 : 2;
}
