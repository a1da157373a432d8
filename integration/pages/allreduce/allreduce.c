// Command allreduce measures MPI_Allreduce of floats between its ranks, with the sizes, times and
// bandwidths of nccl-tests, and checks each sum.
//
//	allreduce SMALLEST LARGEST
//
// Sizes are bytes, and double. The algorithm bandwidth is the size over the time. The bus
// bandwidth is that times 2(n-1)/n for n ranks: what a rank sends, whatever n is.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { rounds = 10 };

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	int rank, ranks;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long smallest = argc == 3 ? atol(argv[1]) : 0, largest = argc == 3 ? atol(argv[2]) : 0;
	if (smallest < 4 || largest < smallest) {
		fprintf(stderr, "usage: allreduce SMALLEST LARGEST (bytes, at least 4)\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	float *in = malloc(largest), *out = malloc(largest);
	if (!in || !out) {
		fprintf(stderr, "no memory for twice %ld bytes\n", largest);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	if (rank == 0)
		printf("# %d ranks\n%12s %12s %10s %13s %13s %6s\n", ranks, "size (B)", "count", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "wrong");
	for (long size = smallest; size <= largest; size *= 2) {
		long count = size / sizeof *in, wrong = 0, all;
		for (long i = 0; i < count; i++)
			in[i] = (rank + 1) * (i % 64);
		MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); // connects
		MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		for (int i = 0; i < rounds; i++)
			MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		double took = (MPI_Wtime() - began) / rounds;
		for (long i = 0; i < count; i++)
			wrong += out[i] != ranks * (ranks + 1) / 2 * (i % 64);
		MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0)
			printf("%12ld %12ld %10.1f %13.2f %13.2f %6ld\n", size, count, took * 1e6, size / took / 1e9,
			       size / took / 1e9 * 2 * (ranks - 1) / ranks, all);
	}
	return MPI_Finalize();
}
