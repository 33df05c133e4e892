/* Takes experts from SWS, as an engine of its own would: experts MODEL BYTES LAYER EXPERT..
 *
 * Prints the matrices of each with a checksum of their bytes (FNV-1a), and the sum of the first row. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "sws.h"

static int fail(void) {
    fprintf(stderr, "experts: %s\n", sws_error());
    return 2;
}

static uint64_t checksum(const sws_tensor *tensor) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t part = 0; part < tensor->part_count; part++) {
        for (size_t at = 0; at < tensor->parts[part].len; at++) {
            hash = (hash ^ tensor->parts[part].bytes[at]) * 0x100000001b3u;
        }
    }
    return hash;
}

static int show(sws_store *store, const sws_expert *expert) {
    for (size_t number = 0; number < expert->tensor_count; number++) {
        const sws_tensor *tensor = &expert->tensors[number];
        size_t cols = (size_t)tensor->cols;
        float *row = malloc(cols * sizeof *row);
        if (row == NULL || sws_store_row(store, expert, number, 0, row, cols) != 0) {
            free(row);
            return -1;
        }
        double sum = 0;
        for (size_t col = 0; col < cols; col++) sum += row[col];
        free(row);
        printf("%u/%u %s %s %llux%zu %016llx %.6f\n", expert->layer, expert->expert, tensor->name, tensor->encoding,
               (unsigned long long)tensor->rows, cols, (unsigned long long)checksum(tensor), sum);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: experts MODEL BYTES LAYER EXPERT..\n");
        return 2;
    }
    sws_store *store = sws_store_open(argv[1], strtoull(argv[2], NULL, 10));
    if (store == NULL) return fail();

    uint32_t layer = (uint32_t)atol(argv[3]);
    int status = 0;
    /* The first is computed with while the others are read. */
    for (int arg = 4; arg < argc && status == 0; arg++) {
        if (arg + 1 < argc) status = sws_store_fetch(store, layer, (uint32_t)atol(argv[arg + 1]));
        const sws_expert *expert = status == 0 ? sws_store_hold(store, layer, (uint32_t)atol(argv[arg])) : NULL;
        if (expert == NULL) {
            status = -1;
            break;
        }
        status = show(store, expert);
        sws_store_release(store, expert);
    }
    int code = status == 0 ? 0 : fail();
    sws_store_close(store);
    return code;
}
