/* SPDX-License-Identifier: GPL-2.0 */
#ifndef FAKERDMA_H
#define FAKERDMA_H

#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/list.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/workqueue.h>
#include <net/dcbnl.h>

#define FK_MAX_VF 64
#define FK_CLASS_INFINIBAND 0x0207	/* of PCI; the kernel has no name for it */
#define FK_FIRST_GPU 31		/* the slot of the first GPU, behind those of the NICs */

/* What "ip link set PF vf N ..." has set. */
struct fk_vf {
	u8 mac[ETH_ALEN];
	u16 vlan;
	u8 qos;
	__be16 proto;
	bool spoofchk, trust;
	int link;
	u32 min_rate, max_rate;
	u64 node_guid, port_guid;	/* of InfiniBand: the VF has them when its driver binds next */
};

/* The identity that QEMU gave a function, put back when we leave it. */
struct fk_ids {
	u16 vendor, device;
	u32 class;
};

#define FK_CHANNELS 4
#define FK_INDIR 128
#define FK_KEY 40
#define FK_RULES 8192

/* What ethtool has set. */
struct fk_settings {
	u32 rings, channels, usecs, frames, fec, flags, level, copybreak, speed;
	u32 lpi_timer, wol;
	struct ieee_ets ets;
	struct ieee_maxrate rates;
	struct dcbnl_buffer buffers;
	u8 pfc, dcbx, trust[256];
	int trusts;
	u8 dscp[64];		/* the priority that the hardware gives each value */
	bool adaptive, pause_rx, pause_tx, eee;
	u32 indir[FK_INDIR];
	u8 key[FK_KEY];
	u32 fields[0x20];
	struct ethtool_rx_flow_spec rules[FK_RULES];
	bool used[FK_RULES];
};

struct fk_rdma;

/*
 * A NIC: one PCI function with a netdev and, unless rdma=0, an RDMA device.
 * With pair_by_mac one function has the netdev, and another the RDMA device. An
 * InfiniBand HCA has an RDMA device only: its netdevs are ib_ipoib's.
 */
struct fk_nic {
	struct pci_dev *pdev;
	struct net_device *ndev;
	struct fk_rdma *rdma;
	struct fk_ids ids;
	unsigned int rail;
	u64 guid;		/* that a test has set for the next RDMA device, 0: by the place */
	struct fk_vf vf[FK_MAX_VF];
	int num_vf;
	struct fk_settings settings;
	struct delayed_work link_up;	/* the end of the link's training */
	struct list_head list;	/* of all NICs, for the switch */
};

static inline struct fk_nic *fk_nic_of(struct net_device *nd)
{
	return *(struct fk_nic **)netdev_priv(nd);
}

extern const struct ethtool_ops fk_ethtool_ops;
extern const struct dcbnl_rtnl_ops fk_dcb_ops;
void fk_settings_init(struct net_device *nd);

bool fk_refuses_vf(int attribute);
struct net_device *fk_netdev_of(struct device *parent);
struct fk_rdma *fk_rdma_of(struct fk_nic *nic, u32 *port);
int fk_rdma_renew(struct fk_nic *nic);
int fk_netdev_renew(struct fk_nic *nic);

extern const struct attribute_group *fk_device_groups[];

bool fk_is_ib(void);
struct fk_rdma *fk_rdma_add(struct fk_nic *nic, struct net_device *ndev, struct device *second, bool lag);
void fk_rdma_del(struct fk_rdma *rdma);
int fk_set_port_state(struct fk_rdma *rdma, u32 port, const char *state);
int fk_set_port_counter(struct fk_rdma *rdma, u32 port, const char *name, u64 value);
void fk_refuse_gids(struct fk_rdma *rdma, u32 port, bool refuse);
int fk_set_pkeys(struct fk_rdma *rdma, u32 port, const char *keys);
int fk_set_lid(struct fk_rdma *rdma, u32 port, u16 lid);
int fk_set_deaf(struct fk_rdma *rdma, u32 port, bool deaf);
void fk_mac(struct fk_nic *nic, u8 *mac);

int fk_count_init(void);
void fk_count_exit(void);
int fk_client_init(void);
void fk_client_exit(void);

#endif
