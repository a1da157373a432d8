// Package rdmacni ends the attachments of rdma-cni (k8snetworkplumbingwg) on
// nodes that switch over while pods run: it returns their RDMA devices and
// removes their records. It is a part of attachments, see [Part]:
//
//	rdmacni.Part{Dir: rdmacni.Records}
package rdmacni
