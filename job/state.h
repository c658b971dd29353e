/* SPDX-License-Identifier: MIT */
/* State shared by the files of a job. Each source becomes an item. A reader takes it up and puts
 * its frame pairs into the feeder, a few at a time (read_clips.c). A device thread gets its next
 * chunk from the feeder (device_thread.c). The sink receives the chunk's pieces with their tokens
 * (sink.c). One lock guards everything except data that only one thread uses: a reader's clip, and
 * the chunks that a device pushes and pulls. */
#pragma once

#include <pthread.h>

#include "clips/task.h"
#include "clock.h"
#include "error.h"
#include "model/feeder.h"
#include "qwenvit_clips.h"
#include "who_decodes.h"

enum {
    QV_JOB_KINDS = QV_SOURCE_PATCHES_BF16 + 1, /* kinds of sources */
    QV_JOB_BUFFERS = 3,                        /* token buffers per device */
    QV_JOB_TEXTS = 2048                        /* bytes of names and texts kept per result */
};

/* How the sources of one kind reach a device. */
struct qv_job_kind {
    bool is_clip; /* the source is a file, which is decoded */
    qv_input input;
};
extern const struct qv_job_kind qv_job_kinds[QV_JOB_KINDS];

/* A stage's clock: how long it has been busy, readable while it runs, under the job's lock. */
struct qv_job_clock {
    double sum_s, since_s; /* since_s: when it was started; 0 if it is stopped */
};

/* Frames that were read. They are freed once they are on the device. */
struct qv_job_frames {
    void *at;
    size_t bytes, users; /* users: pieces that use them, and the feeder while some of them wait */
};

/* Consecutive frame pairs of one item, which are in one chunk. */
struct qv_job_piece {
    struct qv_job_piece *next; /* in the list of pieces for the sink */
    struct qv_job_item *item;
    qv_item pairs;                /* these pairs, as they are pushed to a plan */
    struct qv_job_frames *frames; /* the frames that pairs.data points into; NULL: the caller's */
    double ready_s;               /* when it began to wait for the sink */
    struct qv_job_buffer *buffer; /* holds its tokens */
    /* tokens: the first one's row in the buffer and in the item, and how many there are */
    int64_t buffer_row, first_row, n;
    bool last; /* the item ends with it */
};

/* A chunk's pieces, and memory for its tokens, until the sink has received all of them. */
struct qv_job_buffer {
    qv_tokens tokens;
    qv_context *ctx;              /* the context that allocated it; NULL: nothing is allocated */
    size_t users;                 /* pieces that the sink has not received */
    double device_s;              /* the device's time for the chunk */
    const qv_feeder_chunk *chunk; /* until it is pulled */
    struct qv_job_piece pieces[QV_FEEDER_PIECES];
    size_t n; /* number of pieces */
};

/* A client's bounds and the counts towards them; the job's lock guards the counts. */
struct qv_job_client {
    qv_job *job;
    size_t queue;
    bool refuse_when_full;
    int64_t most_ahead; /* 0: sources ahead are not counted */
    bool is_closed;
    size_t waiting; /* items that no reader has taken up */
    /* ahead: bytes of all items' sources in memory and results not given back; results: bytes of
     * the results of items that were taken up */
    int64_t ahead, results;
    size_t users; /* items, and its owner */
};

/* The states of an item, in order; QV_JOB_FAILED is skipped unless it has failed. */
enum qv_job_state {
    QV_JOB_WAITING, /* it waits for a reader */
    QV_JOB_READING, /* a reader makes pieces of it */
    QV_JOB_READ,    /* all its pieces were made; some may be in progress */
    QV_JOB_FAILED,  /* no piece is in progress; the sink's end call must still be made */
    QV_JOB_TOLD,    /* the sink's end call was made */
    QV_JOB_DONE,    /* its last hold was released, and it was freed */
};

struct qv_job_item {
    struct qv_job_item *next, **link; /* in the list of all items */
    struct qv_job_item *next_waiting; /* in the list of items that wait for a reader */
    struct qv_job_item *next_wants_memory;
    struct qv_job_client *client;
    qv_job_source source;
    qv_decode decode;     /* a clip's: the decoder requested for it */
    struct qvm_task task; /* the clip's task */
    qv_clip *clip;        /* used by the reader alone */
    /* the caller's item; or a clip's grid and number of frames, zeros until it is open */
    qv_item whole;
    int64_t n_tokens, n_computed; /* n_computed: those that the device has returned */
    int64_t step;                 /* frame pairs per put by a reader; the last put may have fewer */
    int64_t put;                  /* frame pairs that were put */
    double *timestamps_s;
    struct qv_job_piece end; /* passed to the sink to report a failure */
    int64_t lent;            /* bytes of the source, if the caller passed it in memory */
    int64_t held;            /* bytes of the result, as far as known */
    bool has_begun;          /* the sink's begin was called; used only in the sink's calls */
    void *entry;             /* the sink's entry */
    /* the lock guards what follows */
    enum qv_job_state state;
    bool is_dropped, is_ending; /* is_ending: the sink has received its last rows */
    qv_feed *feed;              /* its handle in the feeder; NULL: not begun yet, or failed */
    /* held by its reader, by its pieces in chunks, and by each put that still waits in part */
    size_t holders;
    const struct qv_job_worker *sink; /* the thread that calls the sink for it; NULL: none */
    qv_status status;                 /* QV_OK, or why it has failed */
    qv_error error;
    qv_outcome outcome;       /* so far, including what is known about the caller's frames */
    struct qv_job_clock room; /* runs while its reader waits for room */
    double began_s, wait_decode_s, wait_device_s, wait_sink_s;
    int64_t chunk; /* the last chunk that was handed to the sink with a piece of the item */
};

static inline const struct qv_job_kind *
qv_job_kind_of(const struct qv_job_item *item)
{
    return &qv_job_kinds[item->source.kind];
}

/* A device. Only its own thread uses the model and the chunks in progress. */
struct qv_job_device {
    qv_job *job;
    int index;
    qv_model *model;
    int gpu; /* its index, as decoders number GPUs */
    /* decodes: this GPU decodes; is_opening: it is being opened for decoding; not_gpu: why it never
     * will decode, worded to follow "since", or "". The lock guards all three. */
    bool decodes, is_opening;
    char not_gpu[sizeof((qv_outcome *)0)->not_gpu];
    struct qv_job_buffer buffers[QV_JOB_BUFFERS];    /* users: under the lock */
    struct qv_job_buffer *under_way[QV_JOB_BUFFERS]; /* the oldest chunk comes first */
    int n_under_way;
    bool is_lost;             /* under the lock */
    struct qv_job_clock busy; /* under the lock */
};

struct qv_job_worker {
    qv_job *job;
    int lane;
    /* the lock guards what follows */
    struct qv_job_clock busy;       /* a sink thread's: it runs during calls */
    const struct qv_job_item *item; /* a reader's: the item that it reads; NULL: none */
};

struct qv_job {
    qv_job_options o; /* defaults filled in */
    qv_model_info model;
    qv_feeder *feeder;
    int64_t pack_rows;    /* patches in most chunks; 0: nothing is packed */
    int64_t usual_tokens; /* tokens that a buffer keeps room for; few frame pairs need more */
    int64_t hidden;       /* values per token in the last block's rows; 0: not wanted */
    int64_t token_bytes;  /* per token, including DeepStack's outputs and hidden rows */
    int cores;
    qv_decoder *decoder, *own_decoder;
    struct qv_job_device *devices;
    struct qv_job_worker *readers, *sinks;
    struct qv_job_lanes lanes; /* of readers */
    int n_devices, n_sinks;    /* the numbers requested */
    pthread_t *threads;        /* [n_threads]: running threads of readers, sinks and devices */
    int n_threads;

    pthread_mutex_t lock;
    bool has_lock;
    pthread_cond_t changed[5]; /* indexed by qv_job_who */
    int n_conds;
    /* the lock guards what follows */
    bool gpus_started, on_gpu; /* processes that open GPUs were started; some GPU decodes */
    bool looks_for_gpu;        /* with QV_DECODE_AUTO: it is not known yet which GPUs decode */
    bool had_clip;             /* a clip or an image was added */
    bool ended, stopping;      /* no more sources will be added; all threads must return */
    qv_status status;          /* QV_OK, or the failure that has ended the job */
    qv_error error;
    struct qv_job_item *items; /* all items that are not done */
    size_t n_items;
    struct qv_job_item *waiting, **last_waiting; /* items that no reader has taken up, in order */
    size_t n_waiting;
    struct qv_job_client own; /* the bounds of sources without a client */
    /* pieces for the sink and ends of failed items, in order; n_failures: how many such ends */
    struct qv_job_piece *told, **last_told;
    int n_failures;
    int n_lost;               /* devices lost */
    int n_reading, n_putting; /* items with a reader; items that will get more frame pairs */
    int64_t n_handed;         /* chunks that were handed to the sink */
    size_t used;              /* bytes of frames */
    struct qv_job_item *wants_memory; /* items whose readers wait for memory, in order */
    double opened_s;
    qv_job_progress progress;
};

/* Returns the oldest item whose client's bounds allow it to be taken up. */
static inline struct qv_job_item *
qv_job_next_waiting(const qv_job *job)
{
    struct qv_job_item *item = job->waiting;
    while (item && item->client->most_ahead && item->client->results >= item->client->most_ahead)
        item = item->next_waiting;
    return item;
}

/* Returns whether reading an item must stop. Called under the lock. */
static inline bool
qv_job_is_over(const qv_job *job, const struct qv_job_item *item)
{
    return job->stopping || item->status;
}

/* The kinds of threads that wait, and what they wait for. */
enum qv_job_who {
    QV_JOB_ADDERS,  /* wait for room among the sources, or for memory for one */
    QV_JOB_READERS, /* wait for a source, for memory, or for room in a queue */
    QV_JOB_DEVICES, /* wait for pieces or for a buffer */
    QV_JOB_SINKS,   /* wait for pieces with tokens, or for failures */
    QV_JOB_ENDERS,  /* wait until all items are done */
};

/* All of these are called under the lock, except the functions that open and close it. */
qv_status qv_job_lock_open(qv_job *job, qv_error *err);
void qv_job_lock_close(qv_job *job); /* may be called if opening failed */
void qv_job_wake(qv_job *job, enum qv_job_who who);
void qv_job_wait(qv_job *job, enum qv_job_who who);
void qv_job_wait_for(qv_job *job, enum qv_job_who who, double seconds);
/* Waits, and meanwhile calls options.go_on, which may cancel the job. */
void qv_job_wait_asking(qv_job *job, enum qv_job_who who);
double qv_job_clock_read(const struct qv_job_clock *c, double now_s);
double qv_job_clock_stop(struct qv_job_clock *c, double now_s); /* returns how long it has run */
/* Releases the lock for work timed by a clock. */
void qv_job_span_begin(qv_job *job, struct qv_job_clock *c);
/* Takes the lock again. Returns how long the work took, in seconds. */
double qv_job_span_end(qv_job *job, struct qv_job_clock *c);
/* Adds to (or, if negative, subtracts from) the bytes ahead and the bytes of results, if the client
 * bounds them. */
void qv_job_count(struct qv_job_client *client, int64_t ahead, int64_t results);
/* Queues a piece for the sink. */
void qv_job_tell(qv_job *job, struct qv_job_piece *piece);
/* Makes all threads return. */
void qv_job_stop(qv_job *job);
/* Ends the job, which keeps its first failure. */
void qv_job_lose(qv_job *job, qv_status status, const qv_error *err);
