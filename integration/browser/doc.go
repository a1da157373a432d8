// Package browser runs a headless Chromium, Debian's, for tests of pages. It opens files and
// addresses, evaluates JavaScript, and keeps what a page logs and requests.
package browser
