// Collectives of any MPI, measured as nd-bench measures ours. See bench.h.
#include <mpi.h>

#include "bench.h"

static int own_rank, world_size;

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static double sum_over_ranks(double value) {
  double sum;
  MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

static void call(enum collective collective, float *send, float *recv, size_t elements_of_part) {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int count = (int)elements_of_part;
  switch (collective) {
    case ALLREDUCE: MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, world); break;
    case ALLGATHER: MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, world); break;
    case REDUCESCATTER: MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, world); break;
    case BROADCAST: MPI_Bcast(recv, count, MPI_FLOAT, 0, world); break;
    case REDUCE: MPI_Reduce(send, recv, count, MPI_FLOAT, MPI_SUM, 0, world); break;
    case ALLTOALL: MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, world); break;
    case SENDRECV: {
      const int next = (own_rank + 1) % world_size, previous = (own_rank + world_size - 1) % world_size;
      MPI_Sendrecv(send, count, MPI_FLOAT, next, 0, recv, count, MPI_FLOAT, previous, 0, world, MPI_STATUS_IGNORE);
      break;
    }
    default: break;
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  MPI_Get_library_version(library, &length);
  library[strcspn(library, "\n\t,")] = 0;
  int code = bench(argc, argv, own_rank, world_size, library);
  MPI_Finalize();
  return code;
}
