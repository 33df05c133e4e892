/* Continues a text within a budget: tale MODEL RAM PROMPT SEED TOKENS */
#include <stdio.h>
#include <stdlib.h>

#include "sws.h"

static int fail(void) {
    fprintf(stderr, "tale: %s\n", sws_error());
    return 2;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: tale MODEL RAM PROMPT SEED TOKENS\n");
        return 2;
    }
    sws_model *model = sws_open(argv[1], argv[2], 0, 0);
    if (model == NULL) return fail();

    sws_settings settings = {atoll(argv[4]), -1.0f, (uint32_t)atol(argv[5])};
    int next = sws_begin(model, argv[3], &settings);
    if (next == 0) {
        sws_piece piece;
        while ((next = sws_next(model, &piece)) == 1) {
            fwrite(piece.text, 1, piece.text_len, stdout);
            fflush(stdout);
        }
        putchar('\n');
    }
    int code = next < 0 ? fail() : 0;
    sws_close(model);
    return code;
}
