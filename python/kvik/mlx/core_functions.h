/* What kvik._core gives to the extension for MLX: functions that work without Python, so that they
 * run on the threads of MLX's streams, without the interpreter's lock. Plain C, because the two are
 * compiled apart.
 *
 * kvik._core._core_functions() is a capsule of a KvikCoreFunctions; PagedKVCache._handle() one of a
 * cache, to be given to `share`. Both sides check the version: it changes with anything below.
 */
#ifndef KVIK_MLX_CORE_FUNCTIONS_H_
#define KVIK_MLX_CORE_FUNCTIONS_H_

#include <stddef.h>
#include <stdint.h>

#define KVIK_CORE_FUNCTIONS_VERSION 1
#define KVIK_CORE_FUNCTIONS_NAME "kvik.core_functions"
#define KVIK_PAGED_CACHE_NAME "kvik.paged_cache"

typedef enum KvikDtype { KVIK_F32 = 0, KVIK_F16 = 1, KVIK_BF16 = 2 } KvikDtype;

/* A borrowed array of rank 4 in CPU memory; strides count elements. */
typedef struct KvikArray {
  void* data;
  int64_t dtype; /* KvikDtype */
  int64_t shape[4];
  int64_t strides[4];
} KvikArray;

typedef struct KvikAttention {
  float scale;
  int32_t causal;         /* else every query sees all rows */
  int64_t sliding_window; /* tokens; 0: none */
  int64_t kv_len;         /* over the first rows, so many */
  const float* sinks;     /* one for each query head, or null */
  int64_t num_sinks;
  const char* phase;
} KvikAttention;

/* Room for a message, which is cut where it is longer. */
typedef struct KvikMessage {
  char text[512];
} KvikMessage;

/* Functions that return int return 0, or another number with a message. Threads: any; calls for one
 * cache wait for each other. */
typedef struct KvikCoreFunctions {
  uint32_t version;
  uint32_t bytes; /* of this struct */
  /* A reference to the cache of a handle, which keeps it alive; to be given to `release`. */
  void* (*share)(void* handle);
  void (*release)(void* cache);
  /* Appends keys and values [B, H_kv, T, D] at `position`. An error if the cache does not end
   * there; then, and after another error, nothing was changed. */
  int (*append)(void* cache, int64_t position, const KvikArray* keys, const KvikArray* values,
                const char* phase, KvikMessage* message);
  /* Attention of `queries` over the rows, written to `out`, whose last stride is 1. */
  int (*attend)(void* cache, const KvikAttention* attention, const KvikArray* queries,
                const KvikArray* out, KvikMessage* message);
} KvikCoreFunctions;

#endif /* KVIK_MLX_CORE_FUNCTIONS_H_ */
