// Collectives of oneCCL on processors, measured as nd-bench measures ours. See bench.h. MPI brings the ranks together
// and serves the barriers; it is not used within what is timed.
#include <mpi.h>

#include <oneapi/ccl.hpp>

#include "bench.h"

static int own_rank, world_size;
static ccl::communicator *world;

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static double sum_over_ranks(double value) {
  double sum;
  MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

static void call(enum collective collective, float *send, float *recv, size_t count) {
  const auto f32 = ccl::datatype::float32;
  const auto sum = ccl::reduction::sum;
  switch (collective) {
    case ALLREDUCE: ccl::allreduce(send, recv, count, f32, sum, *world).wait(); break;
    case ALLGATHER: ccl::allgather(send, recv, count, f32, *world).wait(); break;
    case REDUCESCATTER: ccl::reduce_scatter(send, recv, count, f32, sum, *world).wait(); break;
    case BROADCAST: ccl::broadcast(recv, count, f32, 0, *world).wait(); break;
    case REDUCE: ccl::reduce(send, recv, count, f32, sum, 0, *world).wait(); break;
    case ALLTOALL: ccl::alltoall(send, recv, count, f32, *world).wait(); break;
    case SENDRECV: {
      auto received = ccl::recv(recv, count, f32, (own_rank + world_size - 1) % world_size, *world);
      auto sent = ccl::send(send, count, f32, (own_rank + 1) % world_size, *world);
      received.wait();
      sent.wait();
      break;
    }
    default: break;
  }
}

int main(int argc, char **argv) {
  ccl::init();
  int threads;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  int code;
  {
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> store;
    if (own_rank == 0) {
      store = ccl::create_main_kvs();
      address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (own_rank != 0) store = ccl::create_kvs(address);
    auto communicator = ccl::create_communicator(world_size, own_rank, store);
    world = &communicator;
    const auto version = ccl::get_library_version();
    char library[64];
    snprintf(library, sizeof library, "oneCCL %u.%u.%u", version.major, version.minor, version.update);
    code = bench(argc, argv, own_rank, world_size, library);
  }
  MPI_Finalize();
  return code;
}
