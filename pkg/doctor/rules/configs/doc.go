// Package configs has the rules about what people write: networks, their ranges of addresses, the
// node file, the configurations of device plugins, and the annotations of pods.
package configs
