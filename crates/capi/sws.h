/* The library of SWS for C. tests/run compares this file with what cbindgen makes of src/; docs/c.md shows its use.
 *
 * Errors: a function that fails returns NULL or -1, and sws_error() then has a sentence that names the problem and the
 * remedy. Null pointers and text that is not UTF-8 are such errors, and so are panics of the library.
 *
 * Threads: a model is used by one thread at a time, which may change; only sws_cancel may be called meanwhile. Calls
 * with a store come from any thread, and wait for one another. Nothing may be used during or after its close. A
 * process that forks opens models and stores in the child.
 */


#ifndef SWS_H
#define SWS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// A model, loaded within a budget. It continues one text at a time.
typedef struct sws_model sws_model;

// Experts of a model within a budget of bytes, for an engine that computes with them itself.
typedef struct sws_store sws_store;

// Sizes of a store.
typedef struct {
  // Layers of the model, some of which may have no experts.
  uint32_t layers;
  // Experts of a layer.
  uint32_t experts;
  // Bytes that an expert takes in the store.
  uint64_t expert_bytes;
  // Number of experts that the store has room for.
  uint64_t room;
} sws_shape;

// A range of bytes.
typedef struct {
  // The first of the bytes.
  const uint8_t *bytes;
  // Number of bytes.
  size_t len;
} sws_part;

// A matrix of an expert. Its bytes are those of the shards: one part, or as many as its encoding has.
typedef struct {
  // Name in the checkpoint.
  const char *name;
  // Name of the encoding, such as bf16; empty for a tensor that no kernel supports.
  const char *encoding;
  // Number of rows.
  uint64_t rows;
  // Number of columns.
  uint64_t cols;
  // The parts of the encoding.
  const sws_part *parts;
  // Number of parts.
  size_t part_count;
} sws_tensor;

// An expert that is held: its tensors.
typedef struct {
  // Its layer.
  uint32_t layer;
  // Its number in the layer.
  uint32_t expert;
  // The tensors, in the order of the shards: gate, up, down.
  const sws_tensor *tensors;
  // Number of tensors.
  size_t tensor_count;
} sws_expert;

// Settings of a text. A null pointer stands for the defaults.
typedef struct {
  // Seed of the random numbers; below 0 for a new one.
  int64_t seed;
  // Temperature of sampling; 0 takes the likeliest token, below 0 stands for the model's own.
  float temperature;
  // Maximum number of new tokens; 0 stands for the model's own, or 256.
  uint32_t max_new_tokens;
} sws_settings;

// A token and the text that it completes.
typedef struct {
  // The token; -1 for text that was held back until the end.
  int64_t token;
  // The text, UTF-8 with a 0 at its end, valid until the next call with the model. It is empty while a
  // character is incomplete.
  const char *text;
  // Bytes of the text, without the 0.
  size_t text_len;
} sws_piece;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the sentence of the last error in this thread; empty without one. It is valid until the next call
// of this library in the thread.
const char *sws_error(void);

// Opens the experts of a model, and takes `bytes` for those in memory. Returns NULL on failure.
//
// Besides, a store takes a few MiB for its threads and for the names and places of all weights.
//
// # Safety
//
// `model` is null or leads to a string.
sws_store *sws_store_open(const char *model, uint64_t bytes);

// Fills in the sizes of a store. Returns 0, or -1 on failure.
//
// # Safety
//
// The store is open; `shape` is null or leads to a shape, which is filled.
int sws_store_shape(const sws_store *store, sws_shape *shape);

// Begins to read an expert in the background, unless it is in memory. It may evict the one that was used
// longest ago and is not held; if all others are held or in flight, it first waits for a read. Returns 0, or
// -1 on failure.
//
// # Safety
//
// The store is open.
int sws_store_fetch(const sws_store *store,
                    uint32_t layer,
                    uint32_t expert);

// Waits until an expert is in memory, and returns it; NULL on failure. It stays where it is until each hold of
// it is released. Every byte was verified, in a checkpoint in place from its second reading on.
//
// # Safety
//
// The store is open.
const sws_expert *sws_store_hold(const sws_store *store,
                                 uint32_t layer,
                                 uint32_t expert);

// Decodes a row of a tensor of an expert that is held into `len` numbers, the columns of the tensor. Returns
// 0, or -1 on failure, with nothing written.
//
// # Safety
//
// The store is open; `numbers` is null or leads to `len` numbers, which are filled.
int sws_store_row(const sws_store *store,
                  const sws_expert *expert,
                  size_t tensor,
                  uint64_t row,
                  float *numbers,
                  size_t len);

// Ends a hold of an expert. Returns 0, or -1 if it is not held by this store.
//
// # Safety
//
// The store is open.
int sws_store_release(const sws_store *store, const sws_expert *expert);

// Closes a store, with all that is held, and frees its memory. NULL is ignored.
//
// # Safety
//
// The store is null, or was opened and not closed since.
void sws_store_close(sws_store *store);

// Loads a model within a budget: a shard directory, a checkpoint, a GGUF file or an id. Returns NULL on
// failure.
//
// `ram` is the memory of the whole process, such as 16GiB, 80%, min or auto; NULL for auto, the memory that is
// free. `threads` of 0 stands for one per core, `context` of 0 for the positions that fit in memory.
//
// # Safety
//
// The pointers are null or lead to strings.
sws_model *sws_open(const char *model,
                    const char *ram,
                    uint32_t threads,
                    uint32_t context);

// Begins to continue a text, in place of the one before. Returns 0, or -1 on failure.
//
// # Safety
//
// The model is open; the other pointers are null or lead to a string and to settings.
int sws_begin(sws_model *model, const char *prompt, const sws_settings *settings);

// Begins to continue tokens, in place of the text before. Returns 0, or -1 on failure.
//
// # Safety
//
// The model is open; the other pointers are null or lead to `count` tokens and to settings.
int sws_begin_tokens(sws_model *model,
                     const uint32_t *tokens,
                     size_t count,
                     const sws_settings *settings);

// Computes the next piece of the text. Returns 1 with a piece, 0 once the text is over, or -1 on failure. A
// computation that fails ends the text; a wrong call leaves it as it is.
//
// # Safety
//
// The model is open; `piece` is null or leads to a piece, which is filled.
int sws_next(sws_model *model,
             sws_piece *piece);

// Ends the text at the next layer, so that sws_next soon returns 0. May be called by any thread while
// another one is in sws_next, but not by a signal handler.
//
// # Safety
//
// The model is null or open.
void sws_cancel(const sws_model *model);

// Closes a model and frees its memory. NULL is ignored.
//
// # Safety
//
// The model is null, or was opened and not closed since.
void sws_close(sws_model *model);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SWS_H */
