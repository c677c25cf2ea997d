"""Gloo's collectives through torch.distributed, measured as nd-bench measures ours (see bench.h).

gloo.py COLLECTIVE SIZE,SIZE,... WARMUP ITERATIONS, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. The
buffers are torch's own memory. all_reduce, broadcast and reduce exist in place only.
"""

import sys
import time

import torch
import torch.distributed as dist

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "sendrecv")
IN_PARTS = ("allgather", "reducescatter", "alltoall")


def call(collective, send, recv):
    """One call; `recv` is the only buffer of those that work in place."""
    if collective == "allreduce":
        dist.all_reduce(recv)
    elif collective == "allgather":
        dist.all_gather_into_tensor(recv, send)
    elif collective == "reducescatter":
        dist.reduce_scatter_tensor(recv, send)
    elif collective == "broadcast":
        dist.broadcast(recv, 0)
    elif collective == "reduce":
        dist.reduce(recv, 0)
    elif collective == "alltoall":
        dist.all_to_all_single(recv, send)
    else:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sent = dist.isend(send, (rank + 1) % ranks)
        dist.recv(recv, (rank - 1) % ranks)
        sent.wait()


def sum_over_ranks(value):
    """A number of each rank, added up."""
    number = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(number)
    return number.item()


def timed(collective, send, recv, iterations):
    """Seconds of a call, the mean of `iterations` back to back."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        call(collective, send, recv)
    return (time.perf_counter() - began) / iterations


def wrong_elements(collective, send, recv, count):
    """Calls once with small whole numbers; elements on all ranks that are not what they must be."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def data(of, start, length):
        return ((torch.arange(start, start + length) + 5 * of) % 23).float()

    def total(start, length):
        return sum(data(r, start, length) for r in range(ranks))

    send.copy_(data(rank, 0, len(send)))
    in_place = collective in ("allreduce", "reduce") or (collective == "broadcast" and rank == 0)
    recv.copy_(send) if in_place else recv.fill_(-1)
    dist.barrier()
    call(collective, send, recv)
    if collective == "reduce" and rank > 0:
        return sum_over_ranks(0)
    if collective in ("allreduce", "reduce"):
        expected = total(0, count)
    elif collective == "reducescatter":
        expected = total(rank * count, count)
    elif collective == "broadcast":
        expected = data(0, 0, count)
    elif collective == "allgather":
        expected = torch.cat([data(r, 0, count) for r in range(ranks)])
    elif collective == "alltoall":
        expected = torch.cat([data(r, rank * count, count) for r in range(ranks)])
    else:
        expected = data((rank - 1) % ranks, 0, count)
    return sum_over_ranks(float((recv != expected).sum()))


def bus_factor(collective, ranks):
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in IN_PARTS else 1


def main():
    """Measures every size; the exit code."""
    if len(sys.argv) != 5 or sys.argv[1] not in COLLECTIVES:
        print(f"usage: gloo.py {'|'.join(COLLECTIVES)} SIZE,SIZE,... WARMUP ITERATIONS", file=sys.stderr)
        return 2
    collective, sizes = sys.argv[1], [int(s) for s in sys.argv[2].split(",")]
    warmup, iterations = int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    send_memory, recv_memory = (torch.zeros(max(sizes) // 4 + 1) for _ in range(2))
    if rank == 0:
        print(f"# library Gloo of torch {torch.__version__}")
    all_wrong = 0
    for size in sizes:
        count = size // 4 // ranks // 4 * 4 if collective in IN_PARTS else size // 4
        if count == 0:
            continue
        sent = count * (ranks if collective in ("reducescatter", "alltoall") else 1)
        received = count * (ranks if collective in ("allgather", "alltoall") else 1)
        # Zeros, so that sums in place stay what they are.
        send, recv = send_memory[:sent].zero_(), recv_memory[:received].zero_()
        for _ in range(warmup):
            call(collective, send, recv)
        n = iterations
        if n == 0:
            mean = sum_over_ranks(timed(collective, send, recv, 3)) / ranks
            n = min(5000, max(5, int(0.1 / mean)))
        own = timed(collective, send, recv, n)
        dist.barrier()
        seconds = sum_over_ranks(own) / ranks
        wrong = wrong_elements(collective, send, recv, count)
        all_wrong += wrong
        if rank == 0:
            size = max(sent, received) * 4
            speed = size / seconds / 1e9
            op = "sum" if collective in ("allreduce", "reducescatter", "reduce") else "none"
            root = 0 if collective in ("broadcast", "reduce") else -1
            times = f"{seconds * 1e6:.3f} {speed:.3f} {speed * bus_factor(collective, ranks):.3f} {wrong:.0f}"
            print(f"{size} {count} float {op} {root} {times} N/A N/A N/A N/A", flush=True)
    dist.destroy_process_group()
    return int(all_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
