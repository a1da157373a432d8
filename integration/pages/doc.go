// Package pages runs the commands of docs/guide/start.md and docs/guide/job.md, as a reader would
// paste them, and compares what they print with what the pages show. The cluster is that of
// "make cluster CHART=yes", which the pages begin with.
//
// [Image] makes the image of the job in examples/job/allreduce.yaml: Debian's Open MPI and
// OpenSSH, and allreduce/allreduce.c.
package pages
