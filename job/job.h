/* SPDX-License-Identifier: MIT */
/*
 * What the files of a job share. A source is an item (reader.c takes it up), which is read in pieces; of
 * those that wait chunks are filled, of the last piece with as many frame pairs as fit (chunk.c, device.c);
 * what went in comes with its tokens to the sink (sink.c). All of
 * a job is under one lock, but what a stage is about: a reader its item's clip, a device its plans.
 */
#ifndef QV_JOB_JOB_H
#define QV_JOB_JOB_H

#include <pthread.h>

#include "clock.h"
#include "error.h"
#include "qwenvit_job.h"

enum {
    QV_JOB_KINDS = QV_SOURCE_PATCHES_BF16 + 1, /* of sources */
    QV_JOB_INPUTS = QV_INPUT_PATCHES_BF16 + 1, /* of plans */
    QV_JOB_AHEAD = 2,
    QV_JOB_BUFFERS = 3,
    QV_JOB_PLANS = QV_JOB_INPUTS + QV_JOB_AHEAD, /* packs' own, and as many as chunks under way */
    QV_JOB_READY = 2,                            /* chunks' worth of an item that wait at most */
    QV_JOB_PARTS = 8 /* of a chunk: as soon as a clip has so much, it waits for one */
};

/* What a kind of source is to a device. */
struct qv_job_kind {
    bool is_clip; /* a file, which is decoded */
    qv_input input;
};
extern const struct qv_job_kind qv_job_kinds[QV_JOB_KINDS];

/* How long a stage has been about something, counted as it goes. Under the job's lock. */
struct qv_job_clock {
    double sum_s, since_s; /* since 0: it stands still */
};

static inline void
qv_job_clock_start(struct qv_job_clock *c, double now_s)
{
    c->since_s = now_s;
}

static inline double
qv_job_clock_read(const struct qv_job_clock *c, double now_s)
{
    return c->sum_s + (c->since_s > 0 ? now_s - c->since_s : 0);
}

static inline void
qv_job_clock_stop(struct qv_job_clock *c, double now_s)
{
    *c = (struct qv_job_clock){ .sum_s = qv_job_clock_read(c, now_s) };
}

/* A queue with room for so many, which is used under the job's lock. */
struct qv_job_queue {
    void **at;
    size_t first, n, room;
};
qv_status qv_job_queue_open(struct qv_job_queue *q, size_t room, qv_error *err);
void qv_job_queue_close(struct qv_job_queue *q);
void qv_job_queue_put(struct qv_job_queue *q, void *what);     /* there is room */
void *qv_job_queue_at(const struct qv_job_queue *q, size_t i); /* from the oldest */
void *qv_job_queue_take(struct qv_job_queue *q, size_t i);

/* A chunk's tokens, for its pieces' items to be given to the sink. */
struct qv_job_buffer {
    qv_tokens tokens;
    qv_context *ctx; /* whose memory they are in; NULL: there is none */
    size_t users;    /* pieces; 0: free */
    bool taken;      /* for a chunk that is under way */
};

/* Frames that were read, freed once the device has them. */
struct qv_job_frames {
    void *at;
    size_t bytes, users; /* users: pieces */
};

/* Frame pairs of an item, one behind the other. */
struct qv_job_piece {
    struct qv_job_item *item;
    qv_item part;                 /* of the item, as it is pushed */
    struct qv_job_frames *frames; /* that its data lies in; NULL: it is the caller's */
    double ready_s;               /* since when it waits: for a chunk, then for the sink */
    struct qv_job_buffer *buffer;
    int64_t buffer_row, first_row, n; /* tokens: in the buffer; of the item */
    bool last;                        /* of its item */
};

/* How far an item is. It goes from one to the next; QV_JOB_FAILED is passed by what has not failed. */
enum qv_job_state {
    QV_JOB_WAITING, /* for a reader */
    QV_JOB_READING, /* a reader makes pieces of it */
    QV_JOB_READ,    /* there will be no more pieces; some may be under way */
    QV_JOB_FAILED,  /* none is under way, and its last call has still to be made */
    QV_JOB_TOLD,    /* its last call was made */
    QV_JOB_DONE,    /* and nobody holds it: it is no more */
};

/* Pieces that wait for chunks of one capacity. */
struct qv_job_pack {
    struct qv_job_pack *next; /* among all there are */
    qv_plan_options options;
    size_t users;              /* items */
    struct qv_job_queue queue; /* oldest first */
};

struct qv_job_item {
    struct qv_job_item *next, **link; /* among all there are */
    qv_job_source source;
    qv_clip_options clip_options;
    qv_clip *clip; /* the reader's */
    qv_clip_info info;
    bool has_info;
    qv_item
        whole; /* the source's, or of a clip its grid and number of frames; zeros before it is open */
    int64_t n_tokens;
    qv_capacity pair;         /* what a frame pair takes */
    int64_t piece_pairs;      /* of all pieces that are read but the last */
    struct qv_job_pack *pack; /* that its pieces go to; NULL: it has not been decided */
    double *timestamps_s;
    struct qv_job_piece end; /* what tells of a failure */
    /* under the lock */
    enum qv_job_state state;
    size_t holders;                   /* its reader, and pieces under way */
    int64_t ready;                    /* frame pairs that wait for a device */
    int device;                       /* that has its pieces; -1: any */
    const struct qv_job_worker *sink; /* that is making a call for it; NULL: none */
    qv_status status;                 /* why it has failed */
    qv_error error;
    int64_t damaged, decoded;
    qv_decode decoded_by;
    char not_gpu[sizeof((qv_clip_info *)0)->not_gpu];
    struct qv_job_clock room; /* its reader's waits for room */
    double began_s, decode_s, wait_decode_s, wait_device_s, wait_sink_s;
};

static inline const struct qv_job_kind *
qv_job_kind_of(const struct qv_job_item *item)
{
    return &qv_job_kinds[item->source.kind];
}

struct qv_job_plan {
    qv_plan *plan;
    qv_plan_options options;
    qv_plan_info info;
    int users; /* chunks */
};

struct qv_job_chunk {
    struct qv_job_plan *plan;
    struct qv_job_buffer *buffer;
    struct qv_job_piece *pieces[QV_PACK_ITEMS];
    size_t n;
    bool more; /* waited that did not fit */
    double device_s;
};

/* A device: its thread alone has the model, the plans and the chunks. */
struct qv_job_device {
    qv_job *job;
    int index;
    qv_model *model;
    pthread_t thread;
    struct qv_job_plan plans[QV_JOB_PLANS];
    struct qv_job_chunk chunks[QV_JOB_AHEAD]; /* under way */
    int64_t ahead, n_pushed, n_pulled;
    qv_capacity last;                             /* what its last chunk took, */
    int64_t repeats;                              /* as so many before that did */
    struct qv_job_buffer buffers[QV_JOB_BUFFERS]; /* users, taken: under the lock */
    struct qv_job_clock busy;                     /* under the lock */
};

struct qv_job_worker {
    qv_job *job;
    int lane;
    pthread_t thread;
    /* under the lock */
    struct qv_job_clock busy;       /* a sink's */
    const struct qv_job_item *item; /* that a reader has; NULL: none */
};

struct qv_job {
    qv_job_options o; /* defaults filled in */
    qv_model_info model;
    qv_plan_options pack; /* of the plan that most pairs are packed in; rows 0: none are packed */
    qv_capacity usual;    /* of the plan through which a full chunk of large pairs goes */
    int64_t usual_tokens; /* of a chunk that few frame pairs are larger than */
    int cores;
    qv_decoder *decoder, *own_decoder;
    struct qv_job_device *devices;
    struct qv_job_worker *readers, *sinks;
    int n_devices, n_readers, n_sinks;                         /* asked for */
    int n_devices_running, n_readers_running, n_sinks_running; /* threads to be joined */
    int gpu_readers; /* the first so many readers have a GPU decode; 0: the clips' options decide */

    pthread_mutex_t lock;
    bool has_lock;
    pthread_cond_t changed[5]; /* by qv_job_who */
    int n_conds;
    /* under the lock */
    bool ended, stopping; /* no more sources; threads are to leave */
    qv_status status;     /* what has ended it */
    qv_error error;
    struct qv_job_item *items; /* that are not done */
    size_t n_items;
    struct qv_job_queue sources;  /* items to be read */
    struct qv_job_pack *packs;    /* that items which are not done go to */
    struct qv_job_queue told;     /* pieces for the sink */
    struct qv_job_queue failures; /* items' ends */
    int n_reading;
    size_t used;             /* bytes of frames */
    int64_t ticket, serving; /* readers that ask for memory get it in their order */
    double ready_s;          /* when a piece became ready last */
    double opened_s;
    qv_job_progress progress;
};

/* Whether an item's next piece may wait beside those that do. */
static inline bool
qv_job_has_room(const struct qv_job_item *item)
{
    const int64_t chunk = qv_capacity_fits(&item->pack->options.capacity, &item->pair);
    return item->ready + item->piece_pairs <= QV_JOB_READY * chunk;
}

/* The model that the core is asked with about items; all models of a job answer the same. */
static inline const qv_model *
qv_job_model(const qv_job *job)
{
    return job->devices[0].model;
}

/* Those who wait, and what they wait for. */
enum qv_job_who {
    QV_JOB_ADDERS,  /* room among the sources */
    QV_JOB_READERS, /* a source, memory, room among what is ready */
    QV_JOB_DEVICES, /* pieces, a buffer */
    QV_JOB_SINKS,   /* pieces with tokens */
    QV_JOB_ENDERS,  /* that all is done */
};

/* These are called under the lock. */
void qv_job_wake(qv_job *job, enum qv_job_who who);
void qv_job_wait(qv_job *job, enum qv_job_who who);
void qv_job_wait_for(qv_job *job, enum qv_job_who who, double seconds);
/* Ends the job with this failure, if nothing has ended it before. */
void qv_job_lose(qv_job *job, qv_status status, const qv_error *err);
/* Fails an item that has not failed yet; what is no matter of the item alone ends the job. */
void qv_job_fail_item(qv_job *job, struct qv_job_item *item, qv_status status, const qv_error *err);
/* Gives back one hold of an item: without a holder the item goes on as far as it can without a
 * call of the sink. Returns its state: with QV_JOB_FAILED the caller has the last call made;
 * with QV_JOB_DONE the item was freed. */
enum qv_job_state qv_job_let_go(qv_job *job, struct qv_job_item *item);
/* What n frame pairs of the piece's item take. */
qv_capacity qv_job_size(const struct qv_job_piece *piece, int64_t n);
void qv_job_free_frames(qv_job *job, struct qv_job_piece *piece); /* a piece's hold of them */
void qv_job_drop_piece(qv_job *job, struct qv_job_piece *piece);  /* and its frames */

void qv_job_span(const qv_job *job, const char *stage, int lane, const char *key, double begin_s,
                 double end_s);

/* Threads. */
void *qv_job_read(void *worker);
void *qv_job_compute(void *device);
void *qv_job_sink_thread(void *worker);

/* item.c */
void qv_job_free_item(qv_job *job, struct qv_job_item *item);   /* under the lock */
void qv_job_unlink_item(qv_job *job, struct qv_job_item *item); /* from the list of all */
/* Decides which chunks the item's frame pairs go to. QV_EINVAL: the grid cannot be. */
qv_status qv_job_decide(qv_job *job, struct qv_job_item *item, const char *name, qv_error *err);

/* chunk.c: under the lock. Fills a device's next chunk with the oldest of what may go, and what fits beside
 * it; false: nothing may, before *wait_s seconds are over. No memory ends the job. */
bool qv_job_choose(struct qv_job_device *d, struct qv_job_chunk *chunk, double *wait_s);

/* device.c */
qv_status qv_job_device_open(struct qv_job_device *d, qv_error *err); /* the plan for packs */
void qv_job_device_close(struct qv_job_device *d);
int64_t qv_job_token_bytes(const qv_job *job, int64_t tokens); /* with DeepStack's outputs */

/* sink.c: the item's last call where the job has ended before it was done; without the lock. */
void qv_job_cancel_item(qv_job *job, struct qv_job_item *item);

#endif
