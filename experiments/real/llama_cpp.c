/* What llama_cpp.py asks of llama.cpp: one model, one context at a time. */
#include "llama.h"
#include "ggml-backend.h"
#include <string.h>

static struct llama_model *model;
static struct llama_context *context;

static void quiet(enum ggml_log_level level, const char *text, void *data) {}

int peer_open(const char *folder, const char *path) {
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(folder);
    model = llama_model_load_from_file(path, llama_model_default_params());
    return model ? llama_vocab_n_tokens(llama_model_get_vocab(model)) : 0;
}

/* An empty cache for n tokens in place of the last one; types of keys and values as ggml numbers them. */
int peer_context(int n, int k, int v, int flash, int threads) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = n, p.type_k = k, p.type_v = v, p.n_threads = p.n_threads_batch = threads;
    p.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (context) llama_free(context);
    context = llama_init_from_model(model, p);
    return context != NULL;
}

/* Reads n tokens from a position on; a row of logits for every one whose `out` is set. */
int peer_read(const int *ids, int start, const signed char *out, int n, float *logits) {
    size_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), rows = 0;
    struct llama_batch b = llama_batch_init(n, 0, 1);
    b.n_tokens = n;
    for (int i = 0; i < n; i++)
        b.token[i] = ids[i], b.pos[i] = start + i, b.n_seq_id[i] = 1, b.seq_id[i][0] = 0, b.logits[i] = out[i];
    int status = llama_decode(context, b);
    for (int i = 0; !status && i < n; i++)
        if (out[i]) memcpy(logits + vocab * rows++, llama_get_logits_ith(context, i), sizeof(float) * vocab);
    llama_batch_free(b);
    return status;
}

int peer_tokens(const char *text, int size, int *ids, int most) {
    return llama_tokenize(llama_model_get_vocab(model), text, size, ids, most, true, true);
}

/* A file's weights as F32, in a file of their own. */
int peer_unpack(const char *path, const char *to, int threads) {
    struct llama_model_quantize_params p = llama_model_quantize_default_params();
    p.nthread = threads, p.ftype = LLAMA_FTYPE_ALL_F32, p.allow_requantize = true;
    return llama_model_quantize(path, to, &p);
}
