// Package deviceplugin converts the configuration of k8s-rdma-shared-dev-plugin or of
// sriov-network-device-plugin to the key "resources" of the node file. It is for clusters that
// switch over to rail-cni.
//
//	config, err := deviceplugin.Find(configMap, "")
//	if err != nil {
//		return err
//	}
//	return config.Write(os.Stdout)
package deviceplugin
