// SPDX-License-Identifier: GPL-2.0
/*
 * fakerdma - stand-ins for RoCE NICs and InfiniBand HCAs, to test how NICs move
 * between network namespaces on the real networking and RDMA cores of Linux.
 *
 * It binds to functions that QEMU emulates, "edu" (a plain NIC) and "nvme" (a
 * NIC with SR-IOV), and makes each a NIC: a netdev and a RoCE device with the
 * function as their common parent, shown in sysfs as an mlx5 of Mellanox. An
 * edu in one of the last slots below a switch is shown as a GPU of NVIDIA instead.
 *
 * This file is the PCI driver, the netdev, and the switch that joins the
 * netdevs of one rail. rdma.c is the RDMA device, settings.c what ethtool sets,
 * queues.c and subnet.c are InfiniBand.
 */
#include <linux/bitfield.h>
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>

#include "fakerdma.h"

static bool rdma = true;
module_param(rdma, bool, 0444);
MODULE_PARM_DESC(rdma, "give each NIC an RDMA device (default on)");

static uint rails = 10;
module_param(rails, uint, 0444);
MODULE_PARM_DESC(rails, "a NIC in slot S is on rail S % rails, and sees no other rail");

static uint slots[32];
static uint num_slots;
module_param_array(slots, uint, &num_slots, 0444);
MODULE_PARM_DESC(slots, "take only the functions in these slots (default: all)");

static uint lag[2];
static int num_lag;
module_param_array(lag, uint, &num_lag, 0444);
MODULE_PARM_DESC(lag, "the NICs in these two slots have one RDMA device, the first one's; in a bond, the bond is the netdev of its port");

static uint two_ports[2];
static int num_two_ports;
module_param_array(two_ports, uint, &num_two_ports, 0444);
MODULE_PARM_DESC(two_ports, "the NICs in these two slots are the ports 1 and 2 of one RDMA device, the first one's");

static uint pair_by_mac[2];
static int num_pair;
module_param_array(pair_by_mac, uint, &num_pair, 0444);
MODULE_PARM_DESC(pair_by_mac, "the function in the first slot has a netdev only, and that in the second its RDMA device, as with Alibaba's erdma");

static bool netns_local;
module_param(netns_local, bool, 0444);
MODULE_PARM_DESC(netns_local, "let no netdev move to another network namespace, as the uplink of a NIC in switchdev mode");

static uint vf_config_calls;
module_param(vf_config_calls, uint, 0644);
MODULE_PARM_DESC(vf_config_calls, "how often somebody asked for a VF (counted)");

static uint vf_sets;
module_param(vf_sets, uint, 0644);
MODULE_PARM_DESC(vf_sets, "how often somebody set something of a VF (counted)");

static uint vf_lacks;
module_param(vf_lacks, uint, 0644);
MODULE_PARM_DESC(vf_lacks, "settings of VFs that the driver refuses, a bit for each IFLA_VF_*");

static uint vf_ignores;
module_param(vf_ignores, uint, 0644);
MODULE_PARM_DESC(vf_ignores, "settings of VFs that the driver takes without an error and without an effect, a bit for each IFLA_VF_*");

static uint vf_probes_fail;
module_param(vf_probes_fail, uint, 0644);
MODULE_PARM_DESC(vf_probes_fail, "how often the driver fails yet to bind a VF (counted down)");

static bool vf_resets;
module_param(vf_resets, bool, 0644);
MODULE_PARM_DESC(vf_resets, "a VF takes the MAC that its PF sets, also as the permanent one, as iavf and ixgbevf do");

static uint vf_config_ms;
module_param(vf_config_ms, uint, 0644);
MODULE_PARM_DESC(vf_config_ms, "what a question for a VF takes, as with firmware");

static uint link_delay_ms;
module_param(link_delay_ms, uint, 0644);
MODULE_PARM_DESC(link_delay_ms, "time from opening a netdev to its carrier, as for a link that trains");

static uint stop_ms;
module_param(stop_ms, uint, 0644);
MODULE_PARM_DESC(stop_ms, "what closing a netdev takes, as for a driver that ends its channels one by one");

static LIST_HEAD(nics);
static DEFINE_SPINLOCK(nics_lock);

/* ------------------------------------------------------------ netdev ---- */

static void fk_link_up(struct work_struct *work)
{
	struct fk_nic *nic = container_of(to_delayed_work(work), struct fk_nic, link_up);

	netif_carrier_on(nic->ndev);	/* the RDMA port follows it */
}

static int fk_open(struct net_device *nd)
{
	if (link_delay_ms)
		schedule_delayed_work(&fk_nic_of(nd)->link_up, msecs_to_jiffies(link_delay_ms));
	else
		netif_carrier_on(nd);
	netif_tx_start_all_queues(nd);
	return 0;
}

static int fk_stop(struct net_device *nd)
{
	cancel_delayed_work_sync(&fk_nic_of(nd)->link_up);
	netif_tx_stop_all_queues(nd);
	netif_carrier_off(nd);
	if (stop_ms)
		msleep(stop_ms);	/* under the RTNL */
	return 0;
}

/* Does the netdev take in a frame for this address? */
static bool fk_accepts(struct net_device *nd, const u8 *dest)
{
	return is_multicast_ether_addr(dest) ||
	       ether_addr_equal(dest, nd->dev_addr) ||
	       (nd->flags & IFF_PROMISC) || !netdev_uc_empty(nd);
}

/* The switch: a copy for every other netdev of the rail that has a link. */
static netdev_tx_t fk_xmit(struct sk_buff *skb, struct net_device *nd)
{
	const u8 *dest = eth_hdr(skb)->h_dest;
	struct fk_nic *me = fk_nic_of(nd), *other;
	struct sk_buff *copy;

	dev_lstats_add(nd, skb->len);
	spin_lock(&nics_lock);
	list_for_each_entry(other, &nics, list) {
		if (other == me || other->rail != me->rail ||
		    !netif_running(other->ndev) ||
		    !netif_carrier_ok(other->ndev) ||
		    !fk_accepts(other->ndev, dest))
			continue;
		copy = skb_copy(skb, GFP_ATOMIC);
		if (copy)
			dev_forward_skb(other->ndev, copy);
	}
	spin_unlock(&nics_lock);
	consume_skb(skb);
	return NETDEV_TX_OK;
}

static void fk_stats64(struct net_device *nd, struct rtnl_link_stats64 *s)
{
	dev_lstats_read(nd, &s->tx_packets, &s->tx_bytes);
}

static int fk_init(struct net_device *nd)
{
	nd->lstats = netdev_alloc_pcpu_stats(struct pcpu_lstats);
	return nd->lstats ? 0 : -ENOMEM;
}

static void fk_uninit(struct net_device *nd)
{
	free_percpu(nd->lstats);
}

static int fk_change_mtu(struct net_device *nd, int mtu)
{
	WRITE_ONCE(nd->mtu, mtu);
	return 0;
}

static int fk_change_carrier(struct net_device *nd, bool on)
{
	if (on)
		netif_carrier_on(nd);
	else
		netif_carrier_off(nd);
	return 0;
}

/* The core keeps the rate, and shows it. */
static int fk_tx_maxrate(struct net_device *nd, int queue, u32 rate)
{
	return 0;
}

/* With this op the core keeps the unicast list that fk_accepts looks at. */
static void fk_rx_mode(struct net_device *nd) {}

static int fk_port_name(struct net_device *nd, char *buf, size_t len)
{
	if (fk_nic_of(nd)->pdev->is_virtfn)
		return -EOPNOTSUPP;
	return snprintf(buf, len, "p0") >= len ? -EINVAL : 0;
}

/* What is set for a VF is kept and shown, and does nothing. */
static struct fk_vf *vf_of(struct net_device *nd, int n)
{
	struct fk_nic *nic = fk_nic_of(nd);

	return n >= 0 && n < nic->num_vf ? &nic->vf[n] : NULL;
}

/* Counts a setting of a VF, and reports whether the driver refuses it. Under the RTNL. */
bool fk_refuses_vf(int attribute)
{
	vf_sets++;
	return vf_lacks & BIT(attribute);
}

/* The VF that is to get a setting. */
static struct fk_vf *vf_to_set(struct net_device *nd, int n, int attribute)
{
	static struct fk_vf nobody;
	struct fk_vf *vf = vf_of(nd, n);

	if (fk_refuses_vf(attribute))
		return ERR_PTR(-EOPNOTSUPP);
	if (vf_ignores & BIT(attribute))
		return &nobody;
	return vf ?: ERR_PTR(-EINVAL);
}

static void reset_vf(struct pci_dev *pf, int n, const u8 *mac)
{
	struct pci_dev *v = NULL;
	struct fk_nic *nic;

	for_each_pci_dev(v) {
		if (!v->is_virtfn || pci_physfn(v) != pf || pci_iov_vf_id(v) != n)
			continue;
		nic = pci_get_drvdata(v);
		if (nic && nic->ndev && !is_zero_ether_addr(mac)) {
			eth_hw_addr_set(nic->ndev, mac);
			ether_addr_copy(nic->ndev->perm_addr, mac);
		}
		pci_dev_put(v);
		break;
	}
}

static int fk_vf_mac(struct net_device *nd, int n, u8 *mac)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_MAC);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	ether_addr_copy(vf->mac, mac);
	if (vf_resets)
		reset_vf(fk_nic_of(nd)->pdev, n, mac);
	return 0;
}

static int fk_vf_vlan(struct net_device *nd, int n, u16 vlan, u8 qos, __be16 proto)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_VLAN_LIST);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->vlan = vlan;
	vf->qos = qos;
	vf->proto = proto;
	return 0;
}

static int fk_vf_spoofchk(struct net_device *nd, int n, bool on)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_SPOOFCHK);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->spoofchk = on;
	return 0;
}

static int fk_vf_trust(struct net_device *nd, int n, bool on)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_TRUST);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->trust = on;
	return 0;
}

static int fk_vf_link(struct net_device *nd, int n, int state)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_LINK_STATE);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->link = state;
	return 0;
}

static int fk_vf_rate(struct net_device *nd, int n, int min, int max)
{
	struct fk_vf *vf = vf_to_set(nd, n, IFLA_VF_RATE);

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->min_rate = min;
	vf->max_rate = max;
	return 0;
}

static int fk_vf_config(struct net_device *nd, int n, struct ifla_vf_info *i)
{
	struct fk_vf *vf = vf_of(nd, n);

	vf_config_calls++; /* under the RTNL */
	if (vf_config_ms)
		msleep(vf_config_ms);
	if (!vf)
		return -EINVAL;
	memset(i, 0, sizeof(*i));
	i->vf = n;
	ether_addr_copy(i->mac, vf->mac);
	i->vlan = vf->vlan;
	i->qos = vf->qos;
	i->vlan_proto = vf->proto;
	i->spoofchk = vf->spoofchk;
	i->trusted = vf->trust;
	i->linkstate = vf->link;
	i->min_tx_rate = vf->min_rate;
	i->max_tx_rate = vf->max_rate;
	return 0;
}

/* A VF keeps a MAC that its PF has set, unless it is trusted, as with igb and mlx5. */
static int fk_set_mac(struct net_device *nd, void *address)
{
	struct fk_nic *nic = fk_nic_of(nd);
	struct sockaddr *to = address;

	if (nic->pdev->is_virtfn) {
		struct fk_nic *pf = pci_get_drvdata(pci_physfn(nic->pdev));
		int n = pci_iov_vf_id(nic->pdev);

		if (pf && n >= 0 && n < FK_MAX_VF && !pf->vf[n].trust && !is_zero_ether_addr(pf->vf[n].mac) &&
		    !ether_addr_equal(pf->vf[n].mac, to->sa_data))
			return -EPERM;
	}
	return eth_mac_addr(nd, address);
}

static const struct net_device_ops fk_netdev_ops = {
	.ndo_init = fk_init,
	.ndo_uninit = fk_uninit,
	.ndo_open = fk_open,
	.ndo_stop = fk_stop,
	.ndo_start_xmit = fk_xmit,
	.ndo_get_stats64 = fk_stats64,
	.ndo_set_mac_address = fk_set_mac,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_change_mtu = fk_change_mtu,
	.ndo_change_carrier = fk_change_carrier,
	.ndo_set_tx_maxrate = fk_tx_maxrate,
	.ndo_set_rx_mode = fk_rx_mode,
	.ndo_get_phys_port_name = fk_port_name,
	.ndo_set_vf_mac = fk_vf_mac,
	.ndo_set_vf_vlan = fk_vf_vlan,
	.ndo_set_vf_spoofchk = fk_vf_spoofchk,
	.ndo_set_vf_trust = fk_vf_trust,
	.ndo_set_vf_link_state = fk_vf_link,
	.ndo_set_vf_rate = fk_vf_rate,
	.ndo_get_vf_config = fk_vf_config,
};

/* --------------------------------------------------------------- NIC ---- */

/* The number that a switch's port gives to the slot below it, 0 if it is none. */
static unsigned int fk_switch_slot(struct pci_dev *pdev)
{
	struct pci_dev *port = pci_upstream_bridge(pci_physfn(pdev));
	u32 cap = 0;

	if (port && pci_pcie_type(port) == PCI_EXP_TYPE_DOWNSTREAM)
		pcie_capability_read_dword(port, PCI_EXP_SLTCAP, &cap);
	return FIELD_GET(PCI_EXP_SLTCAP_PSN, cap);
}

static unsigned int fk_slot(struct pci_dev *pdev)
{
	return fk_switch_slot(pdev) ?: PCI_SLOT(pci_physfn(pdev)->devfn);
}

/* Names as systemd gives them: by slot, or by bus and slot below a bridge. */
static void fk_name(struct fk_nic *nic, char *name)
{
	struct pci_dev *pf = pci_physfn(nic->pdev);
	unsigned int bus = pf->bus->number, slot = fk_slot(pf);
	char place[IFNAMSIZ];

	if (bus && !fk_switch_slot(pf))
		snprintf(place, sizeof(place), "p%us%u", bus, slot);
	else
		snprintf(place, sizeof(place), "s%u", slot);
	if (nic->pdev->is_virtfn)
		snprintf(name, IFNAMSIZ, "en%.6sv%d", place, pci_iov_vf_id(nic->pdev));
	else
		snprintf(name, IFNAMSIZ, "en%.8snp0", place);
}

/* The MAC follows from the place, so that a NIC that was unplugged has it again. */
void fk_mac(struct fk_nic *nic, u8 *mac)
{
	static const u8 mellanox[] = { 0xb8, 0xce, 0xf6 };
	struct pci_dev *pdev = nic->pdev;

	memcpy(mac, mellanox, sizeof(mellanox));
	mac[3] = 0;
	mac[4] = pdev->bus->number;
	mac[5] = pdev->devfn;
	if (pdev->is_virtfn) {
		struct fk_nic *pf = pci_get_drvdata(pci_physfn(pdev));
		int n = pci_iov_vf_id(pdev);

		if (pf && n >= 0 && n < FK_MAX_VF && !is_zero_ether_addr(pf->vf[n].mac))
			ether_addr_copy(mac, pf->vf[n].mac);
	}
}

static struct net_device *fk_netdev(struct fk_nic *nic)
{
	struct net_device *nd = alloc_etherdev_mqs(sizeof(struct fk_nic *), FK_CHANNELS, FK_CHANNELS);
	u8 mac[ETH_ALEN];
	int err;

	if (!nd)
		return ERR_PTR(-ENOMEM);
	*(struct fk_nic **)netdev_priv(nd) = nic;
	SET_NETDEV_DEV(nd, &nic->pdev->dev);
	nd->netdev_ops = &fk_netdev_ops;
	nd->ethtool_ops = &fk_ethtool_ops;
#if IS_ENABLED(CONFIG_DCB)
	nd->dcbnl_ops = &fk_dcb_ops;
#endif
	fk_settings_init(nd);
	nd->min_mtu = 68;
	nd->max_mtu = 9978;
	nd->features |= NETIF_F_HIGHDMA;
	nd->vlan_features = nd->features;
	nd->hw_features = nd->features;
	nd->netns_immutable = netns_local;
	nd->change_proto_down = true;
	fk_mac(nic, mac);
	eth_hw_addr_set(nd, mac);
	netif_carrier_off(nd);
	fk_name(nic, nd->name);
	err = register_netdev(nd);
	if (err == -EEXIST) {	/* a kernel's name, as when udev cannot rename */
		strscpy(nd->name, "eth%d", IFNAMSIZ);
		err = register_netdev(nd);
	}
	if (err) {
		free_netdev(nd);
		return ERR_PTR(err);
	}
	return nd;
}

static bool fk_in_slot(struct fk_nic *nic, const uint *pair, int which)
{
	struct pci_dev *pdev = nic->pdev;

	return pair[which] && !pdev->is_virtfn && !pdev->bus->number &&
	       PCI_SLOT(pdev->devfn) == pair[which];
}

/* The netdev of the function in the first slot, by its MAC. */
static struct net_device *fk_peer(struct fk_nic *nic)
{
	struct net_device *found = NULL;
	struct fk_nic *other;
	u8 mac[ETH_ALEN];

	fk_mac(nic, mac);
	mac[5] = PCI_DEVFN(pair_by_mac[0], 0);
	spin_lock_bh(&nics_lock);
	list_for_each_entry(other, &nics, list)
		if (ether_addr_equal(other->ndev->perm_addr, mac))
			found = other->ndev;
	spin_unlock_bh(&nics_lock);
	return found;
}

static int fk_rdma_only(struct fk_nic *nic)
{
	struct net_device *peer = fk_peer(nic);

	if (!peer)
		return -ENODEV;
	nic->rdma = fk_rdma_add(nic, peer, NULL, false);
	return PTR_ERR_OR_ZERO(nic->rdma);
}

/* The netdev of a function, if it has one now. */
struct net_device *fk_netdev_of(struct device *parent)
{
	struct net_device *found = NULL;
	struct fk_nic *nic;

	spin_lock_bh(&nics_lock);
	list_for_each_entry(nic, &nics, list)
		if (&nic->pdev->dev == parent)
			found = nic->ndev;
	spin_unlock_bh(&nics_lock);
	return found;
}

/* Makes the RDMA device of a function with a netdev, or of an HCA. */
static int fk_rdma_make(struct fk_nic *nic)
{
	struct pci_dev *second = NULL;
	struct fk_rdma *made;

	if (fk_in_slot(nic, two_ports, 0))
		second = pci_get_slot(nic->pdev->bus, PCI_DEVFN(two_ports[1], 0));
	made = fk_rdma_add(nic, nic->ndev, second ? &second->dev : NULL, fk_in_slot(nic, lag, 0));
	pci_dev_put(second);
	nic->rdma = IS_ERR(made) ? NULL : made;
	return PTR_ERR_OR_ZERO(made);
}

/* The RDMA device that serves the function, and the port that does. */
struct fk_rdma *fk_rdma_of(struct fk_nic *nic, u32 *port)
{
	struct fk_rdma *found = nic->rdma;
	struct fk_nic *other;

	*port = 1;
	if (!fk_in_slot(nic, two_ports, 1))
		return found;
	*port = 2;
	spin_lock_bh(&nics_lock);
	list_for_each_entry(other, &nics, list)
		if (fk_in_slot(other, two_ports, 0))
			found = other->rdma;
	spin_unlock_bh(&nics_lock);
	return found;
}

static void fk_plug(struct fk_nic *nic)
{
	spin_lock_bh(&nics_lock);
	list_add_tail(&nic->list, &nics);
	spin_unlock_bh(&nics_lock);
}

static void fk_unplug(struct fk_nic *nic)
{
	spin_lock_bh(&nics_lock);
	list_del(&nic->list);
	spin_unlock_bh(&nics_lock);
}

static int fk_nic_add(struct fk_nic *nic)
{
	if (fk_in_slot(nic, pair_by_mac, 1))
		return fk_rdma_only(nic);
	if (fk_is_ib())	/* a second port has no function of its own */
		return fk_in_slot(nic, two_ports, 1) ? -ENODEV : fk_rdma_make(nic);
	nic->ndev = fk_netdev(nic);
	if (IS_ERR(nic->ndev))
		return PTR_ERR(nic->ndev);
	if (rdma && !fk_in_slot(nic, pair_by_mac, 0) && !fk_in_slot(nic, lag, 1) && !fk_in_slot(nic, two_ports, 1)) {
		int err = fk_rdma_make(nic);

		if (err) {
			unregister_netdev(nic->ndev);
			free_netdev(nic->ndev);
			return err;
		}
	}
	fk_plug(nic);
	return 0;
}

static void fk_nic_del(struct fk_nic *nic)
{
	if (!nic->ndev) {
		if (nic->rdma)
			fk_rdma_del(nic->rdma);
		return;
	}
	fk_unplug(nic);
	if (nic->rdma)
		fk_rdma_del(nic->rdma);
	unregister_netdev(nic->ndev);
	free_netdev(nic->ndev);
}

/*
 * Makes the RDMA device anew, as a driver does that resets: the core puts the new
 * one into the first network namespace, wherever the netdev is.
 */
int fk_rdma_renew(struct fk_nic *nic)
{
	struct fk_rdma *old = nic->rdma;

	if (!old || !(nic->ndev || fk_is_ib()))
		return -ENODEV;
	nic->rdma = NULL;	/* for other knobs */
	fk_rdma_del(old);
	return fk_rdma_make(nic);
}

/* Makes the netdev anew, likewise in the first network namespace. */
int fk_netdev_renew(struct fk_nic *nic)
{
	struct net_device *old = nic->ndev, *made;

	if (!old)
		return -ENODEV;
	fk_unplug(nic);
	unregister_netdev(old);
	made = fk_netdev(nic);
	if (IS_ERR(made)) {	/* the function needs one: it has been reset in vain */
		nic->ndev = NULL;
		free_netdev(old);
		return PTR_ERR(made);
	}
	nic->ndev = made;
	free_netdev(old);
	fk_plug(nic);
	return 0;
}

/* --------------------------------------------------------------- PCI ---- */

/* From here on sysfs shows an mlx5. (The raw config space still tells QEMU's.) */
static void fk_relabel(struct fk_nic *nic)
{
	struct pci_dev *pdev = nic->pdev;

	nic->ids = (struct fk_ids){ pdev->vendor, pdev->device, pdev->class };
	pdev->vendor = PCI_VENDOR_ID_MELLANOX;
	pdev->device = pdev->is_virtfn ? 0x101e : 0x1021;
	pdev->class = (fk_is_ib() ? FK_CLASS_INFINIBAND : PCI_CLASS_NETWORK_ETHERNET) << 8;
}

static void fk_unlabel(struct fk_nic *nic)
{
	nic->pdev->vendor = nic->ids.vendor;
	nic->pdev->device = nic->ids.device;
	nic->pdev->class = nic->ids.class;
}

static unsigned int fk_rail(struct pci_dev *pdev)
{
	return rails ? fk_slot(pdev) % rails : 0;
}

static bool fk_is_gpu(struct pci_dev *pdev)
{
	return fk_switch_slot(pdev) >= FK_FIRST_GPU;
}

static bool fk_wanted(struct pci_dev *pdev)
{
	uint i, slot = fk_slot(pdev);

	if (fk_is_gpu(pdev))
		return false;
	for (i = 0; i < num_slots; i++)
		if (slots[i] == slot)
			return true;
	return num_slots == 0;
}

static int fk_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct fk_nic *nic;
	int err;

	if (!fk_wanted(pdev))
		return -ENODEV;
	if (pdev->is_virtfn && vf_probes_fail) {
		vf_probes_fail--;
		return -EIO;
	}
	nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	if (!nic)
		return -ENOMEM;
	nic->pdev = pdev;
	nic->rail = fk_rail(pdev);
	INIT_DELAYED_WORK(&nic->link_up, fk_link_up);
	err = pci_enable_device(pdev);
	if (err)
		goto free;
	fk_relabel(nic);
	pci_set_drvdata(pdev, nic);
	err = fk_nic_add(nic);
	if (err)
		goto unlabel;
	return 0;

unlabel:
	pci_set_drvdata(pdev, NULL);
	fk_unlabel(nic);
	pci_disable_device(pdev);
free:
	kfree(nic);
	return err;
}

static void fk_remove(struct pci_dev *pdev)
{
	struct fk_nic *nic = pci_get_drvdata(pdev);

	if (!pdev->is_virtfn)
		pci_disable_sriov(pdev);
	fk_nic_del(nic);
	pci_set_drvdata(pdev, NULL);
	fk_unlabel(nic);
	pci_disable_device(pdev);
	kfree(nic);
}

static int fk_sriov(struct pci_dev *pdev, int n)
{
	struct fk_nic *nic = pci_get_drvdata(pdev);
	int err;

	if (!n) {
		pci_disable_sriov(pdev);
		nic->num_vf = 0;
		return 0;
	}
	if (n > FK_MAX_VF)
		return -EINVAL;
	nic->num_vf = n;
	err = pci_enable_sriov(pdev, n);
	if (err) {
		nic->num_vf = 0;
		return err;
	}
	return n;
}

static const struct pci_device_id fk_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },			/* QEMU's edu */
	{ PCI_DEVICE(0x1b36, 0x0010) },			/* QEMU's nvme */
	{ PCI_DEVICE(PCI_VENDOR_ID_MELLANOX, 0x0010) },	/* its VFs, which take our vendor id */
	{}
};

static struct pci_driver fk_driver = {
	.name = "mlx5_core",
	.id_table = fk_ids,
	.probe = fk_probe,
	.remove = fk_remove,
	.sriov_configure = fk_sriov,
	.dev_groups = fk_device_groups,
};

/* ---------------------------------------------------------------- GPU ---- */

/* A GPU does nothing: sysfs shows it, as an H100. */
static int fk_gpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct fk_ids *ids;

	if (!fk_is_gpu(pdev))
		return -ENODEV;
	ids = devm_kzalloc(&pdev->dev, sizeof(*ids), GFP_KERNEL);
	if (!ids)
		return -ENOMEM;
	*ids = (struct fk_ids){ pdev->vendor, pdev->device, pdev->class };
	pci_set_drvdata(pdev, ids);
	pdev->vendor = PCI_VENDOR_ID_NVIDIA;
	pdev->device = 0x2330;
	pdev->class = PCI_CLASS_DISPLAY_3D << 8;
	return 0;
}

static void fk_gpu_remove(struct pci_dev *pdev)
{
	struct fk_ids *ids = pci_get_drvdata(pdev);

	pdev->vendor = ids->vendor;
	pdev->device = ids->device;
	pdev->class = ids->class;
}

static const struct pci_device_id fk_gpu_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },			/* QEMU's edu */
	{}
};

static struct pci_driver fk_gpu_driver = {
	.name = "nvidia",
	.id_table = fk_gpu_ids,
	.probe = fk_gpu_probe,
	.remove = fk_gpu_remove,
};

static int __init fk_load(void)
{
	int err = fk_count_init();

	if (err)
		return err;
	err = fk_client_init();
	if (err)
		goto count;
	err = pci_register_driver(&fk_gpu_driver);
	if (err)
		goto client;
	err = pci_register_driver(&fk_driver);
	if (err)
		goto gpu;
	return 0;

gpu:
	pci_unregister_driver(&fk_gpu_driver);
client:
	fk_client_exit();
count:
	fk_count_exit();
	return err;
}
module_init(fk_load);

static void __exit fk_unload(void)
{
	pci_unregister_driver(&fk_driver);
	pci_unregister_driver(&fk_gpu_driver);
	fk_client_exit();
	fk_count_exit();
}
module_exit(fk_unload);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stand-ins for RoCE NICs and InfiniBand HCAs, to test network namespaces");
