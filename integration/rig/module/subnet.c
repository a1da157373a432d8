// SPDX-License-Identifier: GPL-2.0
/*
 * The subnet of the InfiniBand ports: the management agent of each HCA's port, and
 * the one switch that all ports are on. There is no subnet manager: one in userspace
 * (OpenSM) finds the fabric by directed routes, and sets it up. Until then no port
 * is ACTIVE, and only management packets pass.
 *
 * Attributes are kept as they are on the wire (struct ib_port_info), so that an
 * answer is a copy, and what the core asks is read from the same bytes.
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>

#include "fabric.h"

#define FK_LIDS 1024		/* that the switch routes */
#define FK_MLIDS 256
#define FK_PORT_STATE_CHANGE 4	/* of SwitchInfo's byte 11: a manager must look */

static struct fk_ibport *plugged[FK_SWITCH_PORTS + 1];
static struct fk_switch {
	__be64 guid;
	struct ib_port_info pi[FK_SWITCH_PORTS + 1];
	u8 info[20];			/* SwitchInfo (IBTA 14.2.5.4) */
	u8 lft[FK_LIDS];		/* the port for each LID, 0xff for none */
	__be16 mft[2][FK_MLIDS];	/* the ports of each group, 16 in each half */
} sw;

/* ------------------------------------------------------------ ports ---- */

static void new_port_info(struct ib_port_info *pi, u8 number)
{
	*pi = (struct ib_port_info){
		.gid_prefix = cpu_to_be64(0xfe80000000000000ULL),
		.cap_mask = cpu_to_be32(IB_PORT_CM_SUP),
		.local_port_num = number,
		.link_width_enabled = 3, .link_width_supported = 3, .link_width_active = IB_WIDTH_4X,
		.linkspeed_portstate = 7 << 4 | IB_PORT_INIT,
		.portphysstate_linkdown = IB_PORT_PHYS_STATE_LINK_UP << 4 | 2,
		.linkspeedactive_enabled = 4 << 4 | 7,
		.neighbormtu_mastersmsl = IB_MTU_4096 << 4,
		.vlcap_inittype = 1 << 4,
		.inittypereply_mtucap = IB_MTU_4096,
		.operationalvl_pei_peo_fpi_fpo = 1 << 4,
		.guid_cap = 8,
		.resv_resptimevalue = 16,
		.clientrereg_resv_subnetto = 18,
	};
}

static void set_state(struct ib_port_info *pi, u8 state)
{
	u8 phys = state == IB_PORT_DOWN ? IB_PORT_PHYS_STATE_POLLING : IB_PORT_PHYS_STATE_LINK_UP;

	pi->linkspeed_portstate = (pi->linkspeed_portstate & 0xf0) | state;
	pi->portphysstate_linkdown = phys << 4 | 2;
}

static void new_switch_port(u8 number, u8 state)
{
	new_port_info(&sw.pi[number], number);
	sw.pi[number].cap_mask = 0;
	set_state(&sw.pi[number], state);
	sw.info[11] |= FK_PORT_STATE_CHANGE;
}

static void new_switch(void)
{
	int i;

	sw.guid = cpu_to_be64(0xb8cef60300ffff00ULL);
	for (i = 0; i <= FK_SWITCH_PORTS; i++)
		new_switch_port(i, i ? IB_PORT_DOWN : IB_PORT_ACTIVE);
	*(__be16 *)(sw.info + 0) = cpu_to_be16(FK_LIDS - 1);	/* LinearFDBCap */
	*(__be16 *)(sw.info + 4) = cpu_to_be16(FK_MLIDS);	/* MulticastFDBCap */
	memset(sw.lft, 0xff, sizeof(sw.lft));
}

static void tell(struct fk_ibport *p, enum ib_event_type type)
{
	struct ib_event e = { .device = p->dev, .element.port_num = p->number, .event = type };

	ib_dispatch_event(&e);
}

/* Tells the core how a port's attributes differ from the former ones. */
static void tell_changes(struct fk_ibport *p, const struct ib_port_info *before)
{
	u8 was = fk_state_of(before), is = fk_state_of(&p->pi);

	if (before->lid != p->pi.lid)
		tell(p, IB_EVENT_LID_CHANGE);
	if (before->sm_lid != p->pi.sm_lid)
		tell(p, IB_EVENT_SM_CHANGE);
	if (before->gid_prefix != p->pi.gid_prefix)
		tell(p, IB_EVENT_GID_CHANGE);
	if (was != is && is == IB_PORT_ACTIVE)
		tell(p, IB_EVENT_PORT_ACTIVE);
	if (was != is && was == IB_PORT_ACTIVE)
		tell(p, IB_EVENT_PORT_ERR);
}

/* Connects a port of an HCA with the first free port of the switch. */
int fk_ib_plug(struct fk_ibport *p, struct ib_device *d, u32 number, __be64 guid)
{
	unsigned long flags;
	int i;

	p->dev = d;
	p->number = number;
	p->guid = guid;
	new_port_info(&p->pi, number);
	p->pkeys[0] = IB_DEFAULT_PKEY_FULL;
	spin_lock_irqsave(&fk_fabric, flags);
	if (!sw.guid)
		new_switch();
	for (i = 1; i <= FK_SWITCH_PORTS && plugged[i]; i++)
		;
	p->at = i <= FK_SWITCH_PORTS ? i : 0;
	if (p->at) {
		plugged[i] = p;
		new_switch_port(i, IB_PORT_INIT);
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
	return p->at ? 0 : -ENOSPC;
}

void fk_ib_unplug(struct fk_ibport *p)
{
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	if (p->at) {
		plugged[p->at] = NULL;
		new_switch_port(p->at, IB_PORT_DOWN);
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
}

void fk_ib_query_port(struct fk_ibport *p, struct ib_port_attr *a)
{
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	a->state = fk_state_of(&p->pi);
	a->phys_state = p->pi.portphysstate_linkdown >> 4;
	a->max_mtu = p->pi.inittypereply_mtucap & 0xf;
	a->active_mtu = p->pi.neighbormtu_mastersmsl >> 4;
	a->gid_tbl_len = 1;
	a->pkey_tbl_len = FK_PKEYS;
	a->port_cap_flags = be32_to_cpu(p->pi.cap_mask);
	a->ip_gids = false;
	a->lid = be16_to_cpu(p->pi.lid);
	a->sm_lid = be16_to_cpu(p->pi.sm_lid);
	a->lmc = p->pi.mkeyprot_resv_lmc & 7;
	a->sm_sl = p->pi.neighbormtu_mastersmsl & 0xf;
	a->subnet_timeout = p->pi.clientrereg_resv_subnetto & 0x1f;
	a->max_vl_num = 1;
	a->bad_pkey_cntr = be16_to_cpu(p->pi.pkey_violations);
	a->qkey_viol_cntr = be16_to_cpu(p->pi.qkey_violations);
	spin_unlock_irqrestore(&fk_fabric, flags);
}

static int fk_query_pkey(struct ib_device *d, u32 port, u16 i, u16 *pkey)
{
	if (i >= FK_PKEYS)
		return -EINVAL;
	*pkey = READ_ONCE(fk_ibport_of(d, port)->pkeys[i]);
	return 0;
}

/* The table has one entry: others would have no prefix, which the core takes for the subnet's. */
static int fk_query_gid(struct ib_device *d, u32 port, int i, union ib_gid *gid)
{
	struct fk_ibport *p = fk_ibport_of(d, port);

	gid->global.subnet_prefix = p->pi.gid_prefix;
	gid->global.interface_id = p->guid;
	return 0;
}

/* A program that becomes the subnet manager sets IsSM (ib_umad, issm). */
static int fk_modify_port(struct ib_device *d, u32 port, int mask, struct ib_port_modify *m)
{
	struct fk_ibport *p = fk_ibport_of(d, port);
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	p->pi.cap_mask = cpu_to_be32((be32_to_cpu(p->pi.cap_mask) | m->set_port_cap_mask) & ~m->clr_port_cap_mask);
	spin_unlock_irqrestore(&fk_fabric, flags);
	return 0;
}

/* ------------------------------------------------------------ routes ---- */

struct fk_ibport *fk_port_with(u16 lid)
{
	int i;

	for (i = 1; lid && i <= FK_SWITCH_PORTS; i++)
		if (plugged[i] && be16_to_cpu(plugged[i]->pi.lid) == lid)
			return plugged[i];
	return NULL;
}

/* Does the switch bring packets for this LID from one port to the other? */
bool fk_routed(struct fk_ibport *from, struct fk_ibport *to, u16 lid)
{
	if (from == to)
		return true;
	if (!from->at || !to->at || fk_state_of(&sw.pi[from->at]) != IB_PORT_ACTIVE ||
	    fk_state_of(&sw.pi[to->at]) != IB_PORT_ACTIVE)
		return false;
	if (lid < FK_MULTICAST)
		return lid < FK_LIDS && sw.lft[lid] == to->at;
	lid -= FK_MULTICAST;
	return lid < FK_MLIDS && (be16_to_cpu(sw.mft[to->at / 16][lid]) & BIT(to->at % 16));
}

/* ---------------------------------------------- management agents ---- */

/* Sets what a subnet manager may set (IBTA 14.2.5.6). */
static void set_port_info(struct ib_port_info *now, const struct ib_port_info *to)
{
	u8 state = to->linkspeed_portstate & 0xf;

	now->mkey = to->mkey;
	now->gid_prefix = to->gid_prefix;
	now->lid = to->lid;
	now->sm_lid = to->sm_lid;
	now->mkey_lease_period = to->mkey_lease_period;
	now->mkeyprot_resv_lmc = to->mkeyprot_resv_lmc;
	now->neighbormtu_mastersmsl = to->neighbormtu_mastersmsl;
	now->vl_high_limit = to->vl_high_limit;
	now->vlstallcnt_hoqlife = to->vlstallcnt_hoqlife;
	now->operationalvl_pei_peo_fpi_fpo = to->operationalvl_pei_peo_fpi_fpo;
	now->clientrereg_resv_subnetto = to->clientrereg_resv_subnetto & 0x1f;
	now->localphyerrors_overrunerrors = to->localphyerrors_overrunerrors;
	if (state && fk_state_of(now) != IB_PORT_DOWN)	/* 0: as it is; a set to DOWN trains the link anew */
		set_state(now, state == IB_PORT_DOWN ? IB_PORT_INIT : state);
}

static void node_info(struct ib_smp *smp, u8 type, u8 ports, __be64 node, __be64 port, u8 number, u16 device)
{
	*(struct ib_node_info *)smp->data = (struct ib_node_info){
		.base_version = 1, .class_version = 1, .node_type = type, .num_ports = ports,
		.sys_guid = node, .node_guid = node, .port_guid = port,
		.partition_cap = cpu_to_be16(FK_PKEYS), .device_id = cpu_to_be16(device),
		.local_port_num = number, .vendor_id = { 0x00, 0x02, 0xc9 },
	};
}

static void refuse(struct ib_smp *smp, u16 status)
{
	smp->status |= cpu_to_be16(status);
}

static void hca_port_info(struct fk_ibport *p, struct ib_smp *smp, bool set)
{
	struct ib_port_info before = p->pi, *to = (void *)smp->data;

	if (set) {
		bool again = to->clientrereg_resv_subnetto & 0x80;

		set_port_info(&p->pi, to);
		tell_changes(p, &before);
		if (again)
			tell(p, IB_EVENT_CLIENT_REREGISTER);
	}
	*to = p->pi;
}

static void hca_pkeys(struct fk_ibport *p, struct ib_smp *smp, bool set)
{
	__be16 *keys = (__be16 *)smp->data;
	int i;

	if (be32_to_cpu(smp->attr_mod) & 0xffff) {	/* a block that it does not have */
		refuse(smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	for (i = 0; i < FK_PKEYS; i++) {
		if (set)
			p->pkeys[i] = be16_to_cpu(keys[i]);
		keys[i] = cpu_to_be16(p->pkeys[i]);
	}
	if (set)
		tell(p, IB_EVENT_PKEY_CHANGE);
}

/* The agent of an HCA's port. Returns false for what a program of the host answers. */
static bool hca_agent(struct fk_ibport *p, struct ib_smp *smp)
{
	bool set = smp->method == IB_MGMT_METHOD_SET;

	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memcpy(smp->data, p->dev->node_desc, sizeof(p->dev->node_desc));
		break;
	case IB_SMP_ATTR_NODE_INFO:
		node_info(smp, 1, p->dev->phys_port_cnt, p->dev->node_guid, p->guid, p->number, 4129);
		break;
	case IB_SMP_ATTR_PORT_INFO:
		hca_port_info(p, smp, set);
		break;
	case IB_SMP_ATTR_PKEY_TABLE:
		hca_pkeys(p, smp, set);
		break;
	case IB_SMP_ATTR_GUID_INFO:
		memset(smp->data, 0, sizeof(smp->data));
		if (!smp->attr_mod)
			*(__be64 *)smp->data = p->guid;
		break;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
	case IB_SMP_ATTR_VL_ARB_TABLE:
		break;
	case IB_SMP_ATTR_SM_INFO:
		return false;
	default:
		refuse(smp, IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
	return true;
}

/* Counters of performance: all are 0. */
static void performance_agent(const struct ib_mad *in, struct ib_mad *out)
{
	*out = *in;
	memset(out->data + 40, 0, sizeof(out->data) - 40);	/* behind the header of the class */
	out->mad_hdr.method = IB_MGMT_METHOD_GET_RESP;
}

static bool asks(const struct ib_mad *in)
{
	return in->mad_hdr.method == IB_MGMT_METHOD_GET || in->mad_hdr.method == IB_MGMT_METHOD_SET;
}

/* The core hands over what arrived for the agents of the port. */
static int fk_process_mad(struct ib_device *d, int mad_flags, u32 port, const struct ib_wc *wc,
			  const struct ib_grh *grh, const struct ib_mad *in, struct ib_mad *out,
			  size_t *size, u16 *pkey)
{
	struct fk_ibport *p = fk_ibport_of(d, port);
	struct ib_smp *smp = (void *)out;
	unsigned long flags;
	bool answered;

	if (p->deaf || in->mad_hdr.method == IB_MGMT_METHOD_TRAP_REPRESS)
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_CONSUMED;
	if (!asks(in))
		return IB_MAD_RESULT_SUCCESS;
	switch (in->mad_hdr.mgmt_class) {
	case IB_MGMT_CLASS_SUBN_LID_ROUTED:
	case IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE:
		*out = *in;
		spin_lock_irqsave(&fk_fabric, flags);
		answered = hca_agent(p, smp);
		spin_unlock_irqrestore(&fk_fabric, flags);
		if (!answered)
			return IB_MAD_RESULT_SUCCESS;
		smp->method = IB_MGMT_METHOD_GET_RESP;
		if (smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE)
			smp->status |= IB_SMP_DIRECTION;
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
	case IB_MGMT_CLASS_PERF_MGMT:
		performance_agent(in, out);
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
	}
	return IB_MAD_RESULT_SUCCESS;
}

/* ------------------------------------------------------ the switch ---- */

/* Reads or sets a block of 64 bytes of a table. */
static void block(struct ib_smp *smp, bool set, void *table, u32 at, u32 size)
{
	if (at + sizeof(smp->data) > size) {
		refuse(smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	if (set)
		memcpy(table + at, smp->data, sizeof(smp->data));
	memcpy(smp->data, table + at, sizeof(smp->data));
}

static void switch_info(struct ib_smp *smp, bool set)
{
	u8 changed = sw.info[11] & FK_PORT_STATE_CHANGE;

	if (set) {
		if (smp->data[11] & FK_PORT_STATE_CHANGE)	/* a 1 clears it */
			changed = 0;
		memcpy(sw.info + 6, smp->data + 6, 6);		/* tops, default ports, life time */
		sw.info[11] = (sw.info[11] & ~FK_PORT_STATE_CHANGE) | changed;
		memcpy(sw.info + 18, smp->data + 18, 2);	/* the top of the groups */
	}
	memset(smp->data, 0, sizeof(smp->data));
	memcpy(smp->data, sw.info, sizeof(sw.info));
}

static void switch_port_info(struct ib_smp *smp, bool set, int in)
{
	u32 number = be32_to_cpu(smp->attr_mod) & 0xff;
	struct ib_port_info *pi = (void *)smp->data;

	if (number > FK_SWITCH_PORTS) {
		refuse(smp, IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE);
		return;
	}
	if (set)
		set_port_info(&sw.pi[number], pi);
	*pi = sw.pi[number];
	pi->local_port_num = in;
}

/* The agent of the switch, asked by its port in. */
static void switch_agent(struct ib_smp *smp, int in)
{
	bool set = smp->method == IB_MGMT_METHOD_SET;
	u32 mod = be32_to_cpu(smp->attr_mod), half = mod >> 28;

	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memset(smp->data, 0, sizeof(smp->data));
		strscpy(smp->data, "fakerdma switch", sizeof(smp->data));
		break;
	case IB_SMP_ATTR_NODE_INFO:
		node_info(smp, 2, FK_SWITCH_PORTS, sw.guid, sw.guid, in, 0xcf08);
		break;
	case IB_SMP_ATTR_SWITCH_INFO:
		switch_info(smp, set);
		break;
	case IB_SMP_ATTR_PORT_INFO:
		switch_port_info(smp, set, in);
		break;
	case IB_SMP_ATTR_LINEAR_FORWARD_TABLE:
		block(smp, set, sw.lft, (mod & 0xffff) * 64, sizeof(sw.lft));
		break;
	case IB_SMP_ATTR_MCAST_FORWARD_TABLE:
		block(smp, set, sw.mft[min(half, 1U)], half > 1 ? FK_MLIDS * 2 : (mod & 0x1ff) * 64, sizeof(sw.mft[0]));
		break;
	case IB_SMP_ATTR_GUID_INFO:
		memset(smp->data, 0, sizeof(smp->data));
		*(__be64 *)smp->data = sw.guid;
		break;
	case IB_SMP_ATTR_PKEY_TABLE:
		if (set)
			break;
		memset(smp->data, 0, sizeof(smp->data));
		*(__be16 *)smp->data = cpu_to_be16(IB_DEFAULT_PKEY_FULL);
		break;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
	case IB_SMP_ATTR_VL_ARB_TABLE:
		break;
	default:
		refuse(smp, IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
	smp->method = IB_MGMT_METHOD_GET_RESP;
}

/* Gives an SMP to what is on a port of the switch. */
static void emit(int at, u16 slid, struct ib_smp *smp)
{
	if (at >= 1 && at <= FK_SWITCH_PORTS && plugged[at])
		fk_deliver_smp(plugged[at], slid, smp);
}

/* The switch takes an SMP with a directed route from a port (IBTA 14.2.2.2). */
static void directed(int in, struct ib_smp *smp)
{
	if (smp->hop_cnt >= IB_SMP_MAX_PATH_HOPS)
		return;
	if (ib_get_smp_direction(smp)) {	/* back */
		if (smp->hop_ptr < 2 || smp->hop_ptr > smp->hop_cnt)
			return;
		smp->hop_ptr--;
		emit(smp->return_path[smp->hop_ptr], be16_to_cpu(IB_LID_PERMISSIVE), smp);
		return;
	}
	if (!smp->hop_ptr || smp->hop_ptr > smp->hop_cnt)
		return;
	smp->return_path[smp->hop_ptr] = in;
	if (smp->hop_ptr < smp->hop_cnt) {	/* further */
		smp->hop_ptr++;
		emit(smp->initial_path[smp->hop_ptr], be16_to_cpu(IB_LID_PERMISSIVE), smp);
		return;
	}
	if (smp->method != IB_MGMT_METHOD_GET && smp->method != IB_MGMT_METHOD_SET)
		return;
	switch_agent(smp, in);
	smp->status |= IB_SMP_DIRECTION;
	emit(in, be16_to_cpu(IB_LID_PERMISSIVE), smp);
}

/* The switch takes an SMP that the port p sent. */
void fk_send_smp(struct fk_ibport *p, u16 dlid, struct ib_smp *smp)
{
	struct fk_ibport *to;

	if (!p->at || fk_state_of(&p->pi) == IB_PORT_DOWN)
		return;
	if (smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE) {
		directed(p->at, smp);
		return;
	}
	if (dlid && sw.pi[0].lid == cpu_to_be16(dlid)) {
		switch_agent(smp, p->at);
		fk_deliver_smp(p, dlid, smp);
		return;
	}
	to = fk_port_with(dlid);
	if (to && fk_routed(p, to, dlid))
		fk_deliver_smp(to, be16_to_cpu(p->pi.lid), smp);
}

/* ------------------------------------------- what a test sets (knobs.c) ---- */

/* Pulls the cable, or plugs it in again: the link trains, and a manager must find it. */
void fk_ib_set_cable(struct fk_ibport *p, bool in)
{
	struct ib_port_info before;
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	before = p->pi;
	if (in != (fk_state_of(&before) != IB_PORT_DOWN)) {
		set_state(&p->pi, in ? IB_PORT_INIT : IB_PORT_DOWN);
		if (p->at)
			new_switch_port(p->at, fk_state_of(&p->pi));
		tell_changes(p, &before);
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
}

/* Sets the P_Key table, as a subnet manager does. */
void fk_ib_set_pkeys(struct fk_ibport *p, const u16 *pkeys)
{
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	memcpy(p->pkeys, pkeys, sizeof(p->pkeys));
	tell(p, IB_EVENT_PKEY_CHANGE);
	spin_unlock_irqrestore(&fk_fabric, flags);
}

/* Sets the LID, as a subnet manager does. */
void fk_ib_set_lid(struct fk_ibport *p, u16 lid)
{
	struct ib_port_info before;
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	before = p->pi;
	p->pi.lid = cpu_to_be16(lid);
	tell_changes(p, &before);
	spin_unlock_irqrestore(&fk_fabric, flags);
}

const struct ib_device_ops fk_subnet_ops = {
	.process_mad = fk_process_mad,
	.query_pkey = fk_query_pkey,
	.query_gid = fk_query_gid,
	.modify_port = fk_modify_port,
};
