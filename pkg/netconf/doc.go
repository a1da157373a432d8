// Package netconf is what the user wrote: the network configurations of the
// plugins as the runtime passes them on stdin, with what Multus injects, and
// CNI_ARGS. It parses, applies defaults and validates what can be validated
// without looking at the machine.
//
// It follows encoding/json: keys match in any case, and unknown keys are
// tolerated, because users rely on both. It imports cnierr and safepath of the
// project, and the CNI types. What lies at the paths that users name it looks at
// only for the node file and the flat file.
package netconf
