// What the programs of all peers share: nd-bench's way to measure, its sizes and its table.
//
//   PROGRAM COLLECTIVE SIZE,SIZE,... WARMUP ITERATIONS      sizes in bytes; 0 iterations: as many as take 0.1 s
//
// Per size: warm up; time 3 calls to find the number of iterations; barrier; that many calls back to back on the same
// two buffers (out of place where the call has such a form), no barrier between them; the mean over ranks of each
// rank's own time; then one more call whose result is checked element by element. f32, sum. The buffers come from
// the C library's allocator, page-aligned, and are not registered anywhere.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum collective { ALLREDUCE, ALLGATHER, REDUCESCATTER, BROADCAST, REDUCE, ALLTOALL, SENDRECV, COLLECTIVES };

static const char *const collective_names[COLLECTIVES] = {"allreduce", "allgather", "reducescatter", "broadcast",
                                                          "reduce",    "alltoall",  "sendrecv"};

// Each peer has these three; a collective's `count` is of one rank's part where there are parts. The sum is over all
// ranks.
static void call(enum collective collective, float *send, float *recv, size_t count);
static void barrier(void);
static double sum_over_ranks(double value);

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Parts of the send and of the receive buffer.
static size_t send_parts(enum collective c, int ranks) { return c == REDUCESCATTER || c == ALLTOALL ? ranks : 1; }
static size_t recv_parts(enum collective c, int ranks) { return c == ALLGATHER || c == ALLTOALL ? ranks : 1; }

// Elements of a part; parts are multiples of 16 bytes, as nccl-tests rounds them.
static size_t elements(enum collective c, size_t bytes, int ranks) {
  size_t all = bytes / sizeof(float);
  if (c != ALLGATHER && c != REDUCESCATTER && c != ALLTOALL) return all;
  return all / (size_t)ranks / 4 * 4;
}

// Small whole numbers: any order of summation gives the same.
static float input(int rank, size_t i) { return (float)((i + 5 * (size_t)rank) % 23); }

static float summed(int ranks, size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; r++) sum += input(r, i);
  return sum;
}

static float expected(enum collective c, int rank, int ranks, size_t count, size_t i) {
  switch (c) {
    case ALLREDUCE:
    case REDUCE: return summed(ranks, i);
    case REDUCESCATTER: return summed(ranks, (size_t)rank * count + i);
    case ALLGATHER: return input((int)(i / count), i % count);
    case ALLTOALL: return input((int)(i / count), (size_t)rank * count + i % count);
    case BROADCAST: return input(0, i);
    case SENDRECV: return input((rank + ranks - 1) % ranks, i);
    default: return NAN;
  }
}

static double wrong_elements(enum collective c, int rank, int ranks, float *send, float *recv, size_t count) {
  size_t sent = count * send_parts(c, ranks), received = count * recv_parts(c, ranks);
  for (size_t i = 0; i < sent; i++) send[i] = input(rank, i);
  for (size_t i = 0; i < received; i++) recv[i] = c == BROADCAST && rank == 0 ? input(0, i) : -1;
  barrier();
  call(c, send, recv, count);
  double wrong = 0;
  if (c == REDUCE && rank != 0) received = 0;
  for (size_t i = 0; i < received; i++) wrong += recv[i] != expected(c, rank, ranks, count, i);
  return sum_over_ranks(wrong);
}

static double timed(enum collective c, float *send, float *recv, size_t count, int iterations) {
  barrier();
  double began = seconds();
  for (int i = 0; i < iterations; i++) call(c, send, recv, count);
  return (seconds() - began) / iterations;
}

static float *allocated(size_t bytes) {
  const size_t page = 4096;
  float *memory = (float *)aligned_alloc(page, (bytes + page) / page * page);
  if (!memory) {
    fprintf(stderr, "no memory for a buffer of %zu bytes; use smaller sizes\n", bytes);
    exit(1);
  }
  memset(memory, 0, bytes);
  return memory;
}

static double bus_factor(enum collective c, int ranks) {
  switch (c) {
    case ALLREDUCE: return 2.0 * (ranks - 1) / ranks;
    case ALLGATHER:
    case REDUCESCATTER:
    case ALLTOALL: return (double)(ranks - 1) / ranks;
    default: return 1;
  }
}

// The whole program, once ranks know each other; its exit code.
static int bench(int argc, char **argv, int rank, int ranks, const char *library) {
  int c = 0;
  while (argc == 5 && c < COLLECTIVES && strcmp(argv[1], collective_names[c])) c++;
  if (argc != 5 || c == COLLECTIVES) {
    if (rank == 0) fprintf(stderr, "usage: %s COLLECTIVE SIZE,SIZE,... WARMUP ITERATIONS\n", argv[0]);
    return 2;
  }
  enum collective collective = (enum collective)c;
  const int warmup = atoi(argv[3]), iterations = atoi(argv[4]);
  size_t largest = 0;
  for (const char *at = argv[2]; *at; at += strcspn(at, ","), at += *at == ',') {
    size_t size = strtoull(at, NULL, 10);
    if (size > largest) largest = size;
  }
  float *send = allocated(largest), *recv = allocated(largest);
  if (rank == 0) {
    printf("# library %s\n", library);
    printf("# size count type redop root | time(us) algbw(GB/s) busbw(GB/s) #wrong, out of place | in place\n");
  }
  double all_wrong = 0;
  for (const char *at = argv[2]; *at; at += strcspn(at, ","), at += *at == ',') {
    size_t count = elements(collective, strtoull(at, NULL, 10), ranks);
    if (count == 0) continue;
    for (int i = 0; i < warmup; i++) call(collective, send, recv, count);
    int n = iterations;
    if (n == 0) {
      double mean = sum_over_ranks(timed(collective, send, recv, count, 3)) / ranks;
      n = mean < 1e-9 || 0.1 / mean > 5000 ? 5000 : 0.1 / mean < 5 ? 5 : (int)(0.1 / mean);
    }
    double own = timed(collective, send, recv, count, n);
    barrier();
    double time = sum_over_ranks(own) / ranks;
    double wrong = wrong_elements(collective, rank, ranks, send, recv, count);
    all_wrong += wrong;
    if (rank == 0) {
      size_t parts = send_parts(collective, ranks) > recv_parts(collective, ranks) ? send_parts(collective, ranks)
                                                                                   : recv_parts(collective, ranks);
      size_t bytes = count * sizeof(float) * parts;
      int sums = collective == ALLREDUCE || collective == REDUCESCATTER || collective == REDUCE;
      int rooted = collective == BROADCAST || collective == REDUCE;
      double speed = (double)bytes / time / 1e9;
      printf("%zu %zu float %s %d %.3f %.3f %.3f %.0f N/A N/A N/A N/A\n", bytes, count, sums ? "sum" : "none",
             rooted ? 0 : -1, time * 1e6, speed, speed * bus_factor(collective, ranks), wrong);
      fflush(stdout);
    }
  }
  free(send);
  free(recv);
  return all_wrong > 0;
}
