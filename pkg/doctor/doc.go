// Package doctor has the rules by which a node, its pods, its cluster and its configurations are
// judged, and the reports about their results.
//
// Facts are read once, by pkg/doctor/collect, and are a JSON document of pkg/doctor/fact: "railctl
// doctor collect" prints it, and "railctl doctor --facts" judges it on another machine. So the
// facts of a support case can become a test.
//
// A rule of pkg/doctor/rule is data with a pure function over the facts. The rules are in packages
// below pkg/doctor/rules, by what they judge, and [Rules] is the list of all. Their tests are here:
// the fixture of a rule may be found by no other rule.
//
// The rules call nothing that reads the node or Kubernetes.
package doctor
