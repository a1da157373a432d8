// Package deviceplugin converts the configuration of k8s-rdma-shared-dev-plugin or of
// sriov-network-device-plugin to the resources of the node file, for a cluster that switches over.
//
//	config, err := deviceplugin.Find(configMap, "")
//	if err != nil {
//		return err
//	}
//	return config.Write(os.Stdout)
package deviceplugin
