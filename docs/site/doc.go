// Package site tests the site of the documents, which scripts/docs.sh builds: every page is in
// the menu, links and anchors lead somewhere, the search finds pages by symptoms, and no page is
// wider than a phone.
package site
