#define _GNU_SOURCE
#include "elf.h"

#include <sys/mman.h>
#include <unistd.h>

bool elf_view(struct elf *elf, uintptr_t base, const ElfW(Phdr) * headers, size_t count)
{
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < count; i++)
        if (headers[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(base + headers[i].p_vaddr);
    if (dynamic == NULL || !elf_view_early(elf, base, dynamic))
        return false;
    elf->headers = headers;
    elf->header_count = count;
    return true;
}

/* libc's own comparisons may be a sanitizer's, and not be ready. */
bool elf_begins(const char *text, const char *with)
{
    while (*with != 0)
        if (*text++ != *with++)
            return false;
    return true;
}

static bool same(const char *a, const char *b)
{
    for (; *a == *b; a++, b++)
        if (*a == 0)
            return true;
    return false;
}

bool elf_view_early(struct elf *elf, uintptr_t base, const ElfW(Dyn) * dynamic)
{
    size_t soname = 0;
    elf->base = base;
    elf->headers = NULL;
    elf->header_count = 0;
    elf->symbols = NULL;
    elf->strings = elf->soname = NULL;
    elf->gnu_hash = elf->sysv_hash = NULL;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t address = dynamic->d_un.d_ptr; /* glibc relocates these in place, others do not */
        if (address < base)
            address += base;
        if (dynamic->d_tag == DT_SYMTAB)
            elf->symbols = (ElfW(Sym) *)address;
        else if (dynamic->d_tag == DT_STRTAB)
            elf->strings = (const char *)address;
        else if (dynamic->d_tag == DT_GNU_HASH)
            elf->gnu_hash = (const uint32_t *)address;
        else if (dynamic->d_tag == DT_HASH)
            elf->sysv_hash = (const uint32_t *)address;
        else if (dynamic->d_tag == DT_SONAME)
            soname = dynamic->d_un.d_val;
    }
    if (elf->symbols == NULL || elf->strings == NULL)
        return false;
    elf->soname = soname ? elf->strings + soname : "";
    return true;
}

static bool defines(const struct elf *elf, const ElfW(Sym) * symbol, const char *name)
{
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
           same(elf->strings + symbol->st_name, name);
}

ElfW(Sym) * elf_symbol(const struct elf *elf, const char *name, const ElfW(Sym) * after)
{
    if (elf->gnu_hash != NULL) {
        uint32_t hash = 5381, buckets = elf->gnu_hash[0], first = elf->gnu_hash[1],
                 words = elf->gnu_hash[2];
        for (const unsigned char *c = (const unsigned char *)name; *c; c++)
            hash = hash * 33 + *c;
        if (buckets == 0)
            return NULL;
        const uint32_t *bucket = elf->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4),
                       *chain = bucket + buckets;
        uint32_t at = bucket[hash % buckets];
        if (at < first)
            return NULL;
        for (;; at++) {
            uint32_t entry = chain[at - first];
            if ((entry | 1) == (hash | 1) && &elf->symbols[at] > after &&
                defines(elf, &elf->symbols[at], name))
                return &elf->symbols[at];
            if (entry & 1)
                return NULL;
        }
    }
    if (elf->sysv_hash != NULL) {
        uint32_t count = elf->sysv_hash[1]; /* a walk over all: such libraries are rare and small */
        for (uint32_t at = 0; at < count; at++)
            if (&elf->symbols[at] > after && defines(elf, &elf->symbols[at], name))
                return &elf->symbols[at];
    }
    return NULL;
}

const unsigned char *elf_build_id(const struct elf *elf, size_t *size)
{
    for (size_t i = 0; i < elf->header_count; i++) {
        const ElfW(Phdr) *part = &elf->headers[i];
        const char *at = (const char *)(elf->base + part->p_vaddr), *end = at + part->p_memsz;
        while (part->p_type == PT_NOTE && (size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)(const void *)at;
            const char *name = at + sizeof *note, *bytes = name + ((note->n_namesz + 3u) & ~3u);
            size_t whole =
                ((size_t)note->n_namesz + 3u) / 4 * 4 + ((size_t)note->n_descsz + 3u) / 4 * 4;
            if (whole > (size_t)(end - name))
                break;
            *size = note->n_descsz;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && same(name, "GNU"))
                return (const unsigned char *)bytes;
            at = bytes + ((note->n_descsz + 3u) & ~3u);
        }
    }
    return NULL;
}

bool elf_unlock(const struct elf *elf, const ElfW(Sym) * first, const ElfW(Sym) * last,
                bool unlocked)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)first & ~(page - 1);
    uintptr_t to = ((uintptr_t)(last + 1) + page - 1) & ~(page - 1);
    int protection = PROT_READ;
    for (size_t i = 0; i < elf->header_count; i++) {
        const ElfW(Phdr) *part = &elf->headers[i];
        uintptr_t start = elf->base + part->p_vaddr;
        if (part->p_type == PT_LOAD && (uintptr_t)first >= start &&
            (uintptr_t)first < start + part->p_memsz)
            protection = (part->p_flags & PF_X ? PROT_EXEC : 0) |
                         (part->p_flags & PF_W ? PROT_WRITE : 0) | PROT_READ;
    }
    return mprotect((void *)from, to - from, unlocked ? protection | PROT_WRITE : protection) == 0;
}
