// Package support writes support bundles: one .tar.gz with what a person needs who
// looks at a cluster or a node from afar. Secrets are left out, and README.txt in it
// says what is inside, what was left out, and what could not be read.
//
// [Bundle] is the archive, and takes secrets out of each file. [AddCluster] adds what
// the API server and the agents' pods have. The caller adds the facts and findings of
// package doctor.
package support
