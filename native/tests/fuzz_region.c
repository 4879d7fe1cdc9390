/* libFuzzer: the parsers of what others may have written, a region's files and a limit's text. */
#include "../settings.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void settings_text(const uint8_t *data, size_t size)
{
    char text[300], wrong[512];
    struct setting setting;
    size_t length = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, length);
    text[length] = 0;
    uint64_t value;
    const unsigned char uuid[16] = { 1 };
    if (settings_parse(&setting, "BERTH_GPU_MEM_MIB", text, 1 << 30, wrong, sizeof wrong))
        for (int i = 0; i < MAX_DEVICES; i++)
            if (settings_for(&setting, i, uuid, &value) && (value < 1 || value > 1 << 30))
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct berth_error error;
    if (size == 0)
        return 0;
    size_t rest = size - 1;
    if (data[0] % 3 == 0) {
        settings_text(data + 1, rest);
        return 0;
    }
    /* As mapped: a whole file of zeros with these bytes at its beginning, and the header that gets
       it in. */
    bool whole = data[0] & 0x80, use = data[0] % 3 == 1;
    size_t wanted = use ? sizeof(struct berth_use_file) : sizeof(struct berth_limit_file);
    size_t room = whole ? wanted : rest;
    void *file = aligned_alloc(64, (room + 64) / 64 * 64);
    memset(file, 0, room);
    memcpy(file, data + 1, rest < room ? rest : room);
    if (whole) {
        uint64_t magic = use ? BERTH_USE_MAGIC : BERTH_LIMIT_MAGIC;
        uint32_t words[2] = { BERTH_VERSION, (uint32_t)wanted };
        memcpy(file, &magic, sizeof magic);
        memcpy((char *)file + 8, words, sizeof words);
    }
    bool good = use ? region_check_use(file, room, NULL, &error)
                    : region_check_limit(file, room, NULL, &error);
    if (good && use) { /* then the accounting must be able to live with whatever the rest says */
        struct berth_limit_file limit = { .mem_bytes = 1 << 20 };
        struct berth_region region = {
            .limit = &limit, .use = file, .slot = 3, .path = "/nonexistent"
        };
        uint64_t left;
        if (region_take(&region, 4096, &left))
            region_give(&region, 4096);
        region_give(&region, 1 << 30);
        region_take_some(&region, 1 << 21);
        region_refuse(&region, "fuzz", 1, 0);
        region_reap(&region);
    }
    free(file);
    return 0;
}
