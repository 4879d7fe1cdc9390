/* Looks into the symbol tables of what is loaded, without the loader's help. */
#ifndef BERTH_ELF_H
#define BERTH_ELF_H

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct elf {
    uintptr_t base;
    const ElfW(Phdr) * headers;
    size_t header_count;
    ElfW(Sym) * symbols;
    const char *strings, *soname;
    const uint32_t *gnu_hash, *sysv_hash;
};

bool elf_view(struct elf *elf, uintptr_t base, const ElfW(Phdr) * headers, size_t count);
/* The same from the loader's own list; calls nothing, so that it can run before anything is ready.
 */
bool elf_view_early(struct elf *elf, uintptr_t base, const ElfW(Dyn) * dynamic);
bool elf_begins(const char *text, const char *with);
/* The next definition of `name` after `after` (NULL: the first); libc has several versions of one
   name. */
ElfW(Sym) * elf_symbol(const struct elf *elf, const char *name, const ElfW(Sym) * after);
/* The linker's name for the contents; NULL where it gave none. */
const unsigned char *elf_build_id(const struct elf *elf, size_t *size);
/* Lets the symbol table be written, or not. */
bool elf_unlock(const struct elf *elf, const ElfW(Sym) * first, const ElfW(Sym) * last,
                bool unlocked);

#endif
