/* Wrong calls are refused with a sentence, and leave nothing behind: misuse MODEL */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sws.h"

static int line;

/* Ends the program unless the last call has failed with words in its sentence. */
static void refused(int has_failed, const char *words) {
    if (!has_failed || strstr(sws_error(), words) == NULL) {
        fprintf(stderr, "misuse.c:%d: not refused, or not with `%s`: %s\n", line, words, sws_error());
        exit(1);
    }
}

static void holds(int is_true) {
    if (!is_true) {
        fprintf(stderr, "misuse.c:%d: does not hold (%s)\n", line, sws_error());
        exit(1);
    }
}

#define REFUSED(failed, words) (line = __LINE__, refused(failed, words))
#define HOLDS(fact) (line = __LINE__, holds(fact))

static sws_model *shared;

/* Computes a long prompt, which another thread cancels. */
static void *compute(void *next) {
    sws_piece piece;
    *(int *)next = sws_next(shared, &piece);
    return NULL;
}

static void models(const char *path) {
    sws_piece piece;
    sws_settings settings = {7, 0.0f, 3};
    REFUSED(sws_open(NULL, NULL, 0, 0) == NULL, "`model` is a null pointer");
    REFUSED(sws_open("\xff", NULL, 0, 0) == NULL, "not UTF-8");
    REFUSED(sws_open("nobody/nonesuch", NULL, 0, 0) == NULL, "sws pull");
    REFUSED(sws_open(path, "1lb", 0, 0) == NULL, "not an amount of memory");
    REFUSED(sws_open(path, "1MiB", 0, 0) == NULL, "too small");
    REFUSED(sws_begin(NULL, "The wolf", NULL) == -1, "`model` is a null pointer");
    REFUSED(sws_next(NULL, &piece) == -1, "`model` is a null pointer");
    sws_cancel(NULL);
    sws_close(NULL);

    shared = sws_open(path, "1GiB", 1, 0);
    HOLDS(shared != NULL);
    HOLDS(sws_next(shared, &piece) == 0);
    REFUSED(sws_begin(shared, NULL, NULL) == -1, "`prompt` is a null pointer");
    REFUSED(sws_begin_tokens(shared, NULL, 3, NULL) == -1, "`tokens` is a null pointer");
    HOLDS(sws_begin_tokens(shared, NULL, 0, NULL) == 0);
    REFUSED(sws_next(shared, &piece) == -1, "token");
    uint32_t unknown[] = {1u << 30};
    REFUSED(sws_begin_tokens(shared, unknown, 1, &settings) == -1, "1073741824");
    uint32_t tokens[] = {5, 17, 3};
    HOLDS(sws_begin_tokens(shared, tokens, 3, &settings) == 0);
    REFUSED(sws_next(shared, NULL) == -1, "`piece` is a null pointer");
    /* The wrong call has not ended the text. A piece need not be initialised. */
    int count = 0;
    sws_piece *fresh = malloc(sizeof *fresh);
    HOLDS(fresh != NULL);
    while (sws_next(shared, fresh) == 1) count += fresh->token >= 0;
    free(fresh);
    HOLDS(count == 3 && sws_next(shared, &piece) == 0);

    /* A text is replaced by the next, whose prompt is cancelled before it has a token. */
    static uint32_t prompt[3000];
    HOLDS(sws_begin(shared, "The wolf", &settings) == 0 && sws_next(shared, &piece) == 1);
    HOLDS(sws_begin_tokens(shared, prompt, 3000, NULL) == 0);
    pthread_t thread;
    int next = -1;
    HOLDS(pthread_create(&thread, NULL, compute, &next) == 0);
    sws_cancel(shared);
    pthread_join(thread, NULL);
    HOLDS(next == 0);
    /* A text in progress is freed with its model. */
    HOLDS(sws_begin(shared, "The wolf", NULL) == 0 && sws_next(shared, &piece) == 1);
    sws_close(shared);
}

static void stores(const char *path) {
    REFUSED(sws_store_open(NULL, 1) == NULL, "`model` is a null pointer");
    REFUSED(sws_store_open("nobody/nonesuch", 1) == NULL, "sws pull");
    REFUSED(sws_store_open(path, 0) == NULL, "no room for an expert");
    REFUSED(sws_store_fetch(NULL, 0, 0) == -1, "`store` is a null pointer");
    sws_store_close(NULL);

    sws_shape shape;
    sws_store *store = sws_store_open(path, 1u << 20);
    HOLDS(store != NULL && sws_store_shape(store, &shape) == 0);
    REFUSED(sws_store_shape(store, NULL) == -1, "`shape` is a null pointer");
    uint64_t bytes = shape.expert_bytes;
    sws_store_close(store);

    store = sws_store_open(path, 2 * bytes);
    HOLDS(store != NULL && sws_store_shape(store, &shape) == 0 && shape.room == 2);
    REFUSED(sws_store_fetch(store, 0, 1000) == -1, "layer_0/expert_1000");
    REFUSED(sws_store_hold(store, 1000, 0) == NULL, "layer_1000/expert_0");
    const sws_expert *one = sws_store_hold(store, 0, 0), *same = sws_store_hold(store, 0, 0);
    const sws_expert *other = sws_store_hold(store, 0, 1);
    HOLDS(one != NULL && one == same && other != NULL && one->expert == 0 && other->expert == 1);
    REFUSED(sws_store_hold(store, 0, 2) == NULL, "all 2 experts");
    REFUSED(sws_store_fetch(store, 0, 2) == -1, "all 2 experts");

    float *row = malloc(one->tensors[0].cols * sizeof *row);
    HOLDS(row != NULL);
    size_t cols = one->tensors[0].cols;
    REFUSED(sws_store_row(store, one, one->tensor_count, 0, row, cols) == -1, "no number");
    REFUSED(sws_store_row(store, one, 0, one->tensors[0].rows, row, cols) == -1, "rows");
    REFUSED(sws_store_row(store, one, 0, 0, row, cols - 1) == -1, "numbers, not");
    REFUSED(sws_store_row(store, one, 0, 0, NULL, cols) == -1, "`numbers` is a null pointer");
    /* A wrong length is refused before a number is written. */
    row[0] = -7.0f;
    REFUSED(sws_store_row(store, one, 0, 0, row, SIZE_MAX) == -1, "numbers, not");
    HOLDS(row[0] == -7.0f);
    HOLDS(sws_store_row(store, one, 0, 0, row, cols) == 0 && row[0] != -7.0f);
    free(row);

    /* An expert stays until its last hold is released. */
    uint8_t first = *one->tensors[0].parts[0].bytes;
    HOLDS(sws_store_release(store, one) == 0);
    REFUSED(sws_store_hold(store, 0, 2) == NULL, "all 2 experts");
    HOLDS(*one->tensors[0].parts[0].bytes == first);
    HOLDS(sws_store_release(store, one) == 0);
    REFUSED(sws_store_release(store, one) == -1, "holds no such expert");
    REFUSED(sws_store_release(store, NULL) == -1, "holds no such expert");
    HOLDS(sws_store_fetch(store, 0, 2) == 0 && sws_store_fetch(store, 0, 3) == 0);
    const sws_expert *third = sws_store_hold(store, 0, 3);
    HOLDS(third != NULL && third->expert == 3 && sws_store_release(store, third) == 0);
    /* What is held is freed with its store. */
    sws_store_close(store);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    HOLDS(*sws_error() == 0);
    models(argv[1]);
    stores(argv[1]);
    puts("refused as it should be");
    return 0;
}
