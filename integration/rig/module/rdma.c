// SPDX-License-Identifier: GPL-2.0
/*
 * The RDMA device of a NIC: all that the RDMA core asks of a driver, and no
 * data path. Verbs objects can be made and do nothing. With the mandatory
 * operations there, the core attaches uverbs, umad and the connection manager,
 * as to a real NIC. The ports of InfiniBand HCAs have a data path for the kernel's
 * own users (queues.c) and a fabric (subnet.c).
 *
 * The netdev of the port follows mlx5_ib: dropped when the netdev leaves a
 * network namespace (NETDEV_UNREGISTER), taken up when one with the same
 * parent device arrives in one (NETDEV_REGISTER). With lag=, a bond is taken up
 * when the netdev joins it (NETDEV_CHANGEUPPER). With two_ports=, the second
 * port has the netdev of another function.
 */
#include <linux/delay.h>
#include <linux/moduleparam.h>
#include <linux/netdevice.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "fabric.h"
#include "fakerdma.h"

static bool movable = true;
module_param(movable, bool, 0444);
MODULE_PARM_DESC(movable, "offer disassociate_ucontext, without which the core moves no device (as rxe, siw, efa)");

static uint move_delay_ms;
module_param(move_delay_ms, uint, 0644);
MODULE_PARM_DESC(move_delay_ms, "make each half of a move last longer, to provoke races");

static bool port_down;
module_param(port_down, bool, 0644);
MODULE_PARM_DESC(port_down, "no port is active, although its netdev has a carrier");

static char *link_layer = "ethernet";
module_param(link_layer, charp, 0444);
MODULE_PARM_DESC(link_layer, "\"ib\" makes the NICs InfiniBand HCAs on one switch, which a subnet manager must set up");

bool fk_is_ib(void)
{
	return !strcmp(link_layer, "ib");
}

static ushort gids = 255;
module_param(gids, ushort, 0644);
MODULE_PARM_DESC(gids, "size of the GID table of a port of an RDMA device that is made from now on (default 255)");

#define FK_PORTS 2
#define FK_COUNTERS 8

/* A port, and what the files of the function have set (knobs.c). */
struct fk_port {
	struct device *netdev_parent;	/* of the port's netdev */
	int state;			/* -1: that of the netdev */
	bool refuses;			/* GIDs */
	u64 counters[FK_COUNTERS];
};

struct fk_rdma {
	struct ib_device ibdev;
	struct notifier_block nb;
	struct fk_port ports[FK_PORTS];
	struct fk_ibport ib[FK_PORTS];
	u16 gids;
	bool lag;			/* a bond above the netdev is the port's netdev */
};

static struct fk_port *fk_port(struct ib_device *d, u32 number)
{
	return &container_of(d, struct fk_rdma, ibdev)->ports[number - 1];
}

struct fk_ibport *fk_ibport_of(struct ib_device *d, u32 number)
{
	return &container_of(d, struct fk_rdma, ibdev)->ib[number - 1];
}

static struct fk_nic *fk_nic_with(struct ib_device *d)
{
	return dev_get_drvdata(d->dev.parent);
}

static bool has_link(struct net_device *nd)
{
	return nd && netif_running(nd) && netif_carrier_ok(nd);
}

/* ------------------------------------------------- device and port ---- */

static int fk_query_device(struct ib_device *d, struct ib_device_attr *a,
			   struct ib_udata *u)
{
	if (u->inlen || u->outlen)
		return -EINVAL;
	*a = (struct ib_device_attr){
		.fw_ver = (28ULL << 32) | (39ULL << 16) | 1002,
		.sys_image_guid = d->node_guid,
		.vendor_id = 0x02c9,
		.vendor_part_id = 4129,
		.max_mr_size = ~0ULL,
		.page_size_cap = 0xfffff000,
		.max_qp = 1 << 17,
		.max_qp_wr = 1 << 15,
		.max_send_sge = 30,
		.max_recv_sge = 32,
		.max_cq = 1 << 24,
		.max_cqe = (1 << 22) - 1,
		.max_mr = 1 << 24,
		.max_pd = 1 << 24,
		.max_pkeys = fk_is_ib() ? FK_PKEYS : 1,
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY,
	};
	/* ib_ipoib offers no settings of VFs by the netdev of a VF. */
	if (fk_is_ib() && fk_nic_with(d)->pdev->is_virtfn)
		a->kernel_cap_flags |= IBK_VIRTUAL_FUNCTION;
	return 0;
}

static int fk_query_port(struct ib_device *d, u32 port, struct ib_port_attr *a)
{
	struct net_device *nd = ib_device_get_netdev(d, port);
	bool up = has_link(nd) && !port_down;

	a->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	if (fk_port(d, port)->state >= 0)
		a->state = fk_port(d, port)->state;
	up = a->state != IB_PORT_DOWN;
	a->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	a->max_mtu = IB_MTU_4096;
	a->active_mtu = nd ? iboe_get_mtu(nd->mtu) : IB_MTU_1024;
	a->gid_tbl_len = container_of(d, struct fk_rdma, ibdev)->gids;
	a->pkey_tbl_len = 1;
	a->port_cap_flags = IB_PORT_CM_SUP;
	a->ip_gids = true;
	a->max_msg_sz = 0x40000000;
	a->active_width = IB_WIDTH_4X;
	a->active_speed = IB_SPEED_NDR;
	if (fk_is_ib())
		fk_ib_query_port(fk_ibport_of(d, port), a);
	dev_put(nd);
	return 0;
}

static int fk_port_immutable(struct ib_device *d, u32 port,
			     struct ib_port_immutable *im)
{
	im->core_cap_flags = fk_is_ib() ? RDMA_CORE_PORT_IBA_IB :
		RDMA_CORE_PORT_IBA_ROCE | RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	im->max_mad_size = IB_MGMT_MAD_SIZE;
	im->pkey_tbl_len = fk_is_ib() ? FK_PKEYS : 1;
	im->gid_tbl_len = fk_is_ib() ? 1 : container_of(d, struct fk_rdma, ibdev)->gids;
	return 0;
}

static enum rdma_link_layer fk_link_layer(struct ib_device *d, u32 port)
{
	return fk_is_ib() ? IB_LINK_LAYER_INFINIBAND : IB_LINK_LAYER_ETHERNET;
}

/* The core keeps RoCE's GIDs, and asks the hardware to take each. */
static int fk_add_gid(const struct ib_gid_attr *a, void **context)
{
	return READ_ONCE(fk_port(a->device, a->port_num)->refuses) ? -ENOSPC : 0;
}

static int fk_del_gid(const struct ib_gid_attr *a, void **context)
{
	return 0;
}

static void fk_fw_str(struct ib_device *d, char *s)
{
	snprintf(s, IB_FW_VERSION_NAME_MAX, "28.39.1002");
}

static int fk_query_pkey(struct ib_device *d, u32 port, u16 i, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static ssize_t hca_type_show(struct device *d, struct device_attribute *a, char *b)
{
	return sysfs_emit(b, "MT4129\n");
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *d, struct device_attribute *a, char *b)
{
	return sysfs_emit(b, "0\n");
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t board_id_show(struct device *d, struct device_attribute *a, char *b)
{
	return sysfs_emit(b, "MT_0000000838\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *fk_attrs[] = {
	&dev_attr_hca_type.attr, &dev_attr_hw_rev.attr, &dev_attr_board_id.attr, NULL
};
static const struct attribute_group fk_group = { .attrs = fk_attrs };

static const struct rdma_stat_desc fk_stats[] = {
	{ .name = "rx_write_requests" }, { .name = "out_of_sequence" },
	{ .name = "np_cnp_sent" }, { .name = "rp_cnp_handled" },
	{ .name = "rx_icrc_encapsulated" },
	/* As mlx5's, off until somebody asks for them; the last one stays on then. */
	{ .name = "cc_rx_ce_pkts", .flags = IB_STAT_FLAG_OPTIONAL },
	{ .name = "cc_tx_cnp_pkts", .flags = IB_STAT_FLAG_OPTIONAL },
	{ .name = "fused_pkts", .flags = IB_STAT_FLAG_OPTIONAL },
};
static_assert(ARRAY_SIZE(fk_stats) == FK_COUNTERS);

static struct rdma_hw_stats *fk_alloc_stats(struct ib_device *d, u32 port)
{
	struct rdma_hw_stats *s;
	int i;

	s = rdma_alloc_hw_stats_struct(fk_stats, ARRAY_SIZE(fk_stats),
				       RDMA_HW_STATS_DEFAULT_LIFESPAN);
	for (i = 0; s && i < ARRAY_SIZE(fk_stats); i++)
		if (fk_stats[i].flags & IB_STAT_FLAG_OPTIONAL)
			set_bit(i, s->is_disabled);
	return s;
}

static int fk_get_stats(struct ib_device *d, struct rdma_hw_stats *s, u32 port, int i)
{
	if (!port || !s)
		return -EINVAL;
	memcpy(s->value, fk_port(d, port)->counters, sizeof(fk_port(d, port)->counters));
	return ARRAY_SIZE(fk_stats);
}

static int fk_modify_stat(struct ib_device *d, u32 port, unsigned int i, bool enable)
{
	return !enable && i == ARRAY_SIZE(fk_stats) - 1 ? -EBUSY : 0;
}

static int fk_modify_device(struct ib_device *d, int mask, struct ib_device_modify *m)
{
	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	if (mask & IB_DEVICE_MODIFY_NODE_DESC)
		memcpy(d->node_desc, m->node_desc, sizeof(d->node_desc));
	return 0;
}

/* ------------------------------------------- verbs, without a data path ---- */

struct fk_ucontext { struct ib_ucontext ibuc; };
struct fk_pd { struct ib_pd ibpd; };
struct fk_cq { struct ib_cq ibcq; };
struct fk_qp { struct ib_qp ibqp; struct ib_qp_attr attr; };

static atomic_t next_qpn = ATOMIC_INIT(16);

static int fk_alloc_ucontext(struct ib_ucontext *c, struct ib_udata *u) { return 0; }
static void fk_dealloc_ucontext(struct ib_ucontext *c) {}
static int fk_alloc_pd(struct ib_pd *pd, struct ib_udata *u) { return 0; }
static int fk_dealloc_pd(struct ib_pd *pd, struct ib_udata *u) { return 0; }

static int fk_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *a,
			struct uverbs_attr_bundle *attrs)
{
	cq->cqe = a->cqe;
	return 0;
}

static int fk_destroy_cq(struct ib_cq *cq, struct ib_udata *u) { return 0; }
static int fk_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc) { return 0; }
static int fk_req_notify(struct ib_cq *cq, enum ib_cq_notify_flags f) { return 0; }

static int fk_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *a, struct ib_udata *u)
{
	qp->qp_num = a->qp_type == IB_QPT_GSI ? 1 : atomic_inc_return(&next_qpn);
	return 0;
}

static int fk_modify_qp(struct ib_qp *qp, struct ib_qp_attr *a, int mask,
			struct ib_udata *u)
{
	if (mask & IB_QP_STATE)
		container_of(qp, struct fk_qp, ibqp)->attr.qp_state = a->qp_state;
	return 0;
}

static int fk_query_qp(struct ib_qp *qp, struct ib_qp_attr *a, int mask,
		       struct ib_qp_init_attr *i)
{
	*a = container_of(qp, struct fk_qp, ibqp)->attr;
	memset(i, 0, sizeof(*i));
	return 0;
}

static int fk_destroy_qp(struct ib_qp *qp, struct ib_udata *u) { return 0; }

static int fk_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			const struct ib_send_wr **bad)
{
	*bad = wr;
	return -EOPNOTSUPP;
}

static int fk_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad)
{
	return 0;
}

static struct ib_mr *new_mr(void)
{
	struct ib_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	return mr ? mr : ERR_PTR(-ENOMEM);
}

static struct ib_mr *fk_get_dma_mr(struct ib_pd *pd, int acc)
{
	return new_mr();
}

static struct ib_mr *fk_reg_user_mr(struct ib_pd *pd, u64 start, u64 len, u64 va,
				    int acc, struct ib_udata *u)
{
	return new_mr();
}

static int fk_dereg_mr(struct ib_mr *mr, struct ib_udata *u)
{
	kfree(mr);
	return 0;
}

/*
 * The core moves a device to another network namespace by cutting off its user
 * contexts, and enabling it again there.
 */
static void delay_move(void)
{
	if (move_delay_ms)	/* msleep(0) sleeps */
		msleep(move_delay_ms);
}

static void fk_disassociate(struct ib_ucontext *c)
{
	delay_move();
}

static int fk_enable(struct ib_device *d)
{
	delay_move();
	return 0;
}

static const struct ib_device_ops fk_ops = {
	.owner = THIS_MODULE,
	/*
	 * libibverbs picks its provider by this number, and siw's asks for
	 * nothing at open. Not RXE: rdma_rxe would take our devices for its own.
	 */
	.driver_id = RDMA_DRIVER_SIW,
	.uverbs_abi_ver = 1,
	.device_group = &fk_group,
	.alloc_hw_port_stats = fk_alloc_stats,
	.get_hw_stats = fk_get_stats,
	.modify_hw_stat = fk_modify_stat,
	.modify_device = fk_modify_device,
	.query_device = fk_query_device,
	.query_port = fk_query_port,
	.get_port_immutable = fk_port_immutable,
	.get_link_layer = fk_link_layer,
	.get_dev_fw_str = fk_fw_str,
	.query_pkey = fk_query_pkey,
	.add_gid = fk_add_gid,
	.del_gid = fk_del_gid,
	.enable_driver = fk_enable,
	.alloc_ucontext = fk_alloc_ucontext,
	.dealloc_ucontext = fk_dealloc_ucontext,
	.alloc_pd = fk_alloc_pd,
	.dealloc_pd = fk_dealloc_pd,
	.create_cq = fk_create_cq,
	.destroy_cq = fk_destroy_cq,
	.poll_cq = fk_poll_cq,
	.req_notify_cq = fk_req_notify,
	.create_qp = fk_create_qp,
	.modify_qp = fk_modify_qp,
	.query_qp = fk_query_qp,
	.destroy_qp = fk_destroy_qp,
	.post_send = fk_post_send,
	.post_recv = fk_post_recv,
	.get_dma_mr = fk_get_dma_mr,
	.reg_user_mr = fk_reg_user_mr,
	.dereg_mr = fk_dereg_mr,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, fk_ucontext, ibuc),
	INIT_RDMA_OBJ_SIZE(ib_pd, fk_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_cq, fk_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_qp, fk_qp, ibqp),
};

static const struct ib_device_ops fk_movable_ops = {
	.disassociate_ucontext = fk_disassociate,
};

/* ------------------------------------- virtual functions of InfiniBand ---- */

/* What ib_ipoib asks for "ip link set PF vf N ...": NULL if there is no such VF. */
static struct fk_vf *fk_ib_vf(struct ib_device *d, int n)
{
	struct fk_nic *nic = fk_nic_with(d);

	return n >= 0 && n < nic->num_vf ? &nic->vf[n] : NULL;
}

static int fk_set_vf_guid(struct ib_device *d, int n, u32 port, u64 guid, int type)
{
	struct fk_vf *vf = fk_ib_vf(d, n);

	if (fk_refuses_vf(type))
		return -EOPNOTSUPP;
	if (!vf)
		return -EINVAL;
	if (type == IFLA_VF_IB_NODE_GUID)
		vf->node_guid = guid;
	else
		vf->port_guid = guid;
	return 0;
}

static int fk_get_vf_guid(struct ib_device *d, int n, u32 port, struct ifla_vf_guid *node,
			  struct ifla_vf_guid *of_port)
{
	struct fk_vf *vf = fk_ib_vf(d, n);

	if (!vf)
		return -EINVAL;
	node->guid = vf->node_guid;
	of_port->guid = vf->port_guid;
	return 0;
}

static int fk_set_vf_link_state(struct ib_device *d, int n, u32 port, int state)
{
	struct fk_vf *vf = fk_ib_vf(d, n);

	if (!vf)
		return -EINVAL;
	vf->link = state;
	return 0;
}

static int fk_get_vf_config(struct ib_device *d, int n, u32 port, struct ifla_vf_info *i)
{
	struct fk_vf *vf = fk_ib_vf(d, n);

	if (!vf)
		return -EINVAL;
	*i = (struct ifla_vf_info){ .vf = n, .linkstate = vf->link };
	return 0;
}

static int fk_get_vf_stats(struct ib_device *d, int n, u32 port, struct ifla_vf_stats *s)
{
	*s = (struct ifla_vf_stats){};
	return 0;
}

static const struct ib_device_ops fk_vf_ops = {
	.set_vf_guid = fk_set_vf_guid,
	.get_vf_guid = fk_get_vf_guid,
	.set_vf_link_state = fk_set_vf_link_state,
	.get_vf_config = fk_get_vf_config,
	.get_vf_stats = fk_get_vf_stats,
};

/* ------------------------------------------------- netdev of the port ---- */

static void tell_port_state(struct fk_rdma *fk, u32 port, bool active)
{
	struct ib_event e = {
		.device = &fk->ibdev,
		.element.port_num = port,
		.event = active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR,
	};

	ib_dispatch_event(&e);
}

static void follow_bond(struct fk_rdma *fk, u32 port, struct net_device *nd,
			struct netdev_notifier_changeupper_info *info)
{
	if (fk->lag && nd->dev.parent == fk_port(&fk->ibdev, port)->netdev_parent &&
	    netif_is_bond_master(info->upper_dev))
		ib_device_set_netdev(&fk->ibdev, info->linking ? info->upper_dev : nd, port);
}

static void fk_port_event(struct fk_rdma *fk, u32 port, unsigned long event,
			  struct net_device *nd, void *info)
{
	struct net_device *mine = ib_device_get_netdev(&fk->ibdev, port);

	if (nd->dev.parent != fk_port(&fk->ibdev, port)->netdev_parent && nd != mine) {
		dev_put(mine);
		return;
	}
	switch (event) {
	case NETDEV_REGISTER:
		if (!mine && !fk_is_ib())
			ib_device_set_netdev(&fk->ibdev, nd, port);
		break;
	case NETDEV_UNREGISTER:
		if (mine == nd)
			ib_device_set_netdev(&fk->ibdev, NULL, port);
		break;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		if (mine == nd)
			tell_port_state(fk, port, has_link(nd));
		break;
	case NETDEV_CHANGEUPPER:
		follow_bond(fk, port, nd, info);
		break;
	}
	dev_put(mine);
}

static int fk_netdev_event(struct notifier_block *nb, unsigned long event, void *info)
{
	struct fk_rdma *fk = container_of(nb, struct fk_rdma, nb);
	u32 port;

	rdma_for_each_port(&fk->ibdev, port)
		fk_port_event(fk, port, event, netdev_notifier_info_to_dev(info), info);
	return NOTIFY_DONE;
}

/* ------------------------------------------- what a test sets (knobs.c) ---- */

static const char *const fk_states[] = {
	[IB_PORT_DOWN] = "DOWN", [IB_PORT_INIT] = "INIT",
	[IB_PORT_ARMED] = "ARMED", [IB_PORT_ACTIVE] = "ACTIVE",
};

/* "auto" is the state of the netdev, and on InfiniBand that which the subnet manager sets. */
int fk_set_port_state(struct fk_rdma *fk, u32 port, const char *state)
{
	int i = __sysfs_match_string(fk_states + 1, ARRAY_SIZE(fk_states) - 1, state) + 1;
	struct net_device *nd;

	if (sysfs_streq(state, "auto"))
		i = -1;
	else if (i < IB_PORT_DOWN || (fk_is_ib() && i > IB_PORT_DOWN))
		return -EINVAL;
	if (fk_is_ib()) {
		fk_ib_set_cable(fk_ibport_of(&fk->ibdev, port), i < 0);
		return 0;
	}
	WRITE_ONCE(fk_port(&fk->ibdev, port)->state, i);
	nd = ib_device_get_netdev(&fk->ibdev, port);
	tell_port_state(fk, port, i < 0 ? has_link(nd) : i == IB_PORT_ACTIVE);
	dev_put(nd);
	return 0;
}

int fk_set_port_counter(struct fk_rdma *fk, u32 port, const char *name, u64 value)
{
	int i;

	for (i = 0; i < FK_COUNTERS; i++)
		if (!strcmp(fk_stats[i].name, name)) {
			fk_port(&fk->ibdev, port)->counters[i] = value;
			return 0;
		}
	return -EINVAL;
}

void fk_refuse_gids(struct fk_rdma *fk, u32 port, bool refuse)
{
	WRITE_ONCE(fk_port(&fk->ibdev, port)->refuses, refuse);
}

/* Takes the keys as "0xffff 0x8001"; a 0 is a hole. */
int fk_set_pkeys(struct fk_rdma *fk, u32 port, const char *keys)
{
	u16 table[FK_PKEYS] = {};
	int i, used;

	if (!fk_is_ib())
		return -EOPNOTSUPP;
	for (i = 0; i < FK_PKEYS && sscanf(keys, "%hi%n", &table[i], &used) == 1; i++)
		keys += used;
	if (*skip_spaces(keys))
		return -EINVAL;
	fk_ib_set_pkeys(fk_ibport_of(&fk->ibdev, port), table);
	return 0;
}

int fk_set_lid(struct fk_rdma *fk, u32 port, u16 lid)
{
	if (!fk_is_ib())
		return -EOPNOTSUPP;
	fk_ib_set_lid(fk_ibport_of(&fk->ibdev, port), lid);
	return 0;
}

int fk_set_deaf(struct fk_rdma *fk, u32 port, bool deaf)
{
	if (!fk_is_ib())
		return -EOPNOTSUPP;
	WRITE_ONCE(fk_ibport_of(&fk->ibdev, port)->deaf, deaf);
	return 0;
}

/* --------------------------------------------------------- the device ---- */

/* The netdevs of the ports, of those that exist. */
static int fk_set_netdevs(struct fk_rdma *fk, struct net_device *first)
{
	struct net_device *second = NULL;
	int err;

	err = ib_device_set_netdev(&fk->ibdev, first, 1);
	if (!err && fk->ibdev.phys_port_cnt > 1)
		second = fk_netdev_of(fk->ports[1].netdev_parent);
	return second ? ib_device_set_netdev(&fk->ibdev, second, 2) : err;
}

/* The GUIDs follow from the place, unless somebody has set them. A VF has what its PF says. */
static void fk_guids(struct fk_nic *nic, __be64 *node, __be64 *port)
{
	u8 mac[ETH_ALEN];

	if (fk_is_ib() && nic->pdev->is_virtfn) {
		struct fk_nic *pf = pci_get_drvdata(pci_physfn(nic->pdev));
		int n = pci_iov_vf_id(nic->pdev);

		*node = *port = 0;
		if (pf && n >= 0 && n < FK_MAX_VF) {
			*node = cpu_to_be64(pf->vf[n].node_guid);
			*port = cpu_to_be64(pf->vf[n].port_guid);
		}
		return;
	}
	fk_mac(nic, mac);
	addrconf_addr_eui48((u8 *)node, mac);
	if (nic->guid)
		*node = cpu_to_be64(nic->guid);
	*port = *node;
}

static int fk_ib_plug_all(struct fk_rdma *fk, __be64 guid)
{
	int err = 0;
	u32 port;

	rdma_for_each_port(&fk->ibdev, port)
		err = err ?: fk_ib_plug(&fk->ib[port - 1], &fk->ibdev, port, cpu_to_be64(be64_to_cpu(guid) + port - 1));
	return err;
}

static void fk_ib_unplug_all(struct fk_rdma *fk)
{
	u32 port;

	rdma_for_each_port(&fk->ibdev, port)
		fk_ib_unplug(&fk->ib[port - 1]);
}

/* Makes the RDMA device of a NIC. Its first port has the netdev, NULL on InfiniBand. */
struct fk_rdma *fk_rdma_add(struct fk_nic *nic, struct net_device *nd, struct device *second, bool lag)
{
	struct fk_rdma *fk = ib_alloc_device(fk_rdma, ibdev);
	__be64 port_guid;
	int err, i;

	if (!fk)
		return ERR_PTR(-ENOMEM);
	fk->ibdev.dev.parent = &nic->pdev->dev;
	for (i = 0; i < FK_PORTS; i++)
		fk->ports[i].state = -1;
	fk->ports[0].netdev_parent = nd ? nd->dev.parent : &nic->pdev->dev;
	fk->ports[1].netdev_parent = get_device(second);
	fk->gids = gids;
	fk->lag = lag;
	fk->ibdev.node_type = RDMA_NODE_IB_CA;
	fk->ibdev.phys_port_cnt = second ? 2 : 1;
	fk->ibdev.num_comp_vectors = num_possible_cpus();
	fk->ibdev.use_cq_dim = true;	/* as mlx5 */
	strscpy(fk->ibdev.node_desc, "fakerdma", sizeof(fk->ibdev.node_desc));
	fk_guids(nic, &fk->ibdev.node_guid, &port_guid);
	if (fk_is_ib()) {	/* before the others: the first to set an operation wins */
		ib_set_device_ops(&fk->ibdev, &fk_queue_ops);
		ib_set_device_ops(&fk->ibdev, &fk_subnet_ops);
		if (!nic->pdev->is_virtfn)
			ib_set_device_ops(&fk->ibdev, &fk_vf_ops);
	}
	ib_set_device_ops(&fk->ibdev, &fk_ops);
	if (movable)
		ib_set_device_ops(&fk->ibdev, &fk_movable_ops);
	err = fk_is_ib() ? fk_ib_plug_all(fk, port_guid) : fk_set_netdevs(fk, nd);
	if (err)
		goto dealloc;
	/* No DMA device: the core's virtual DMA is used. */
	err = ib_register_device(&fk->ibdev, "mlx5_%d", NULL);
	if (err)
		goto dealloc;
	fk->nb.notifier_call = fk_netdev_event;
	err = register_netdevice_notifier(&fk->nb);
	if (err)
		goto unregister;
	return fk;

unregister:
	ib_unregister_device(&fk->ibdev);
dealloc:
	if (fk_is_ib())
		fk_ib_unplug_all(fk);
	ib_dealloc_device(&fk->ibdev);
	put_device(second);
	return ERR_PTR(err);
}

void fk_rdma_del(struct fk_rdma *fk)
{
	struct device *second = fk->ports[1].netdev_parent;

	unregister_netdevice_notifier(&fk->nb);
	ib_unregister_device(&fk->ibdev);
	if (fk_is_ib())
		fk_ib_unplug_all(fk);
	ib_dealloc_device(&fk->ibdev);
	put_device(second);
}
