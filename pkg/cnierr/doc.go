// Package cnierr is the form of an error that a user will read: which object,
// what went wrong, and what to do about it, with the CNI error code that the
// runtime sees.
//
// Inside the project errors are wrapped with %w as everywhere in Go. The edge
// (a plugin's main) calls [ToCNI] once, which builds the *types.Error that
// skel prints. Nothing below the edge makes a *types.Error: skel finds it with
// errors.As, so every text that was wrapped round it would be lost.
//
// The package imports only the CNI types.
package cnierr
