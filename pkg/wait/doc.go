// Package wait waits for a time, or for a condition. Each wait ends when its context ends.
//
//	err := wait.Until(ctx, 10*time.Millisecond, func() (bool, error) { return ready(), nil })
//
// k8s.io/apimachinery has a package of the same name. The plugins do not use that package,
// because it depends on net/http and klog: host-device would grow from 5.0 to 6.7 MB.
package wait
