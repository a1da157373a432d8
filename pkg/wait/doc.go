// Package wait waits for a time, or for a condition. Both end with their
// context.
//
//	err := wait.Until(ctx, 10*time.Millisecond, func() (bool, error) { return ready(), nil })
//
// k8s.io/apimachinery has a package of this name. The plugins do not use it: it
// depends on net/http and klog, and host-device would grow from 5.0 to 6.7 MB.
package wait
