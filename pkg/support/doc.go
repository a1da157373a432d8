// Package support writes support bundles: one .tar.gz with what a person needs who
// looks at a cluster or a node from afar. Secrets are left out, and README.txt in it
// says what is inside, what was left out, and what could not be read.
//
// [Bundle] is the archive. It removes the secrets from each file. [AddCluster] adds files from the
// API server and from the agents' pods. The caller adds the facts and the findings of package
// doctor.
package support
