// Package scratch holds what tests and their scripts put beside the checkout: directories
// for temporary files, and named network namespaces. Nothing of it stays for long, however
// its owner ends.
//
// Each name has its owner in it, a process: PID and start time, because PIDs are used again,
// as in /tmp/rail-4711.815432-rig-1 and /run/netns/rail-4711.815432-node-2. An owner removes
// what it made when it ends in order. What one left that was killed, the next process that
// makes something of its own removes first ([Sweep]). It leaves alone what has another form
// of name, another user, an owner that lives, or one in another PID namespace.
//
// Program run does the same for scripts (scripts/scratch.sh). The package imports nothing of
// ours.
package scratch
