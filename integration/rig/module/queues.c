// SPDX-License-Identifier: GPL-2.0
/*
 * The data path of InfiniBand ports: queue pairs of kernel clients (MAD agents,
 * ib_ipoib, ib_cm), whose packets are copied from one HCA of
 * this machine to another, if the switch brings them there (subnet.c). Datagrams
 * obey P_Keys, Q_Keys and the states of ports, and are dropped as on a real fabric.
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>

#include "fabric.h"

DEFINE_SPINLOCK(fk_fabric);
static LIST_HEAD(qps);
static atomic_t next_qpn = ATOMIC_INIT(64);

struct fk_ring {
	struct ib_cq ibcq;
	struct ib_wc *wcs;
	u32 size, first, count;
	bool armed;
};

struct fk_recv {
	u64 wr_id;
	int num_sge;
};

struct fk_group {
	struct list_head list;
	union ib_gid gid;
};

struct fk_pair {
	struct ib_qp ibqp;
	struct ib_qp_attr attr;
	struct list_head list;		/* of all QPs of the fabric */
	struct list_head groups;
	struct fk_recv *rq;
	struct ib_sge *sges;		/* rq_sges for each of rq */
	u32 rq_size, rq_sges, rq_first, rq_count;
	u32 port, qkey, dest, dlid;
	u16 pkey_index;
	bool sig_all;
};

static struct fk_pair *pair_of(struct ib_qp *qp)
{
	return container_of(qp, struct fk_pair, ibqp);
}

static struct fk_ring *ring_of(struct ib_cq *cq)
{
	return container_of(cq, struct fk_ring, ibcq);
}

/* ------------------------------------------------- completion queues ---- */

static int fk_create_ring(struct ib_cq *ibcq, const struct ib_cq_init_attr *a,
			  struct uverbs_attr_bundle *attrs)
{
	struct fk_ring *cq = ring_of(ibcq);

	cq->size = a->cqe + 1;
	cq->wcs = kvcalloc(cq->size, sizeof(*cq->wcs), GFP_KERNEL);
	ibcq->cqe = a->cqe;
	return cq->wcs ? 0 : -ENOMEM;
}

static int fk_destroy_ring(struct ib_cq *ibcq, struct ib_udata *u)
{
	kvfree(ring_of(ibcq)->wcs);
	return 0;
}

static int fk_poll_ring(struct ib_cq *ibcq, int n, struct ib_wc *wc)
{
	struct fk_ring *cq = ring_of(ibcq);
	unsigned long flags;
	int i;

	spin_lock_irqsave(&fk_fabric, flags);
	for (i = 0; i < n && cq->count; i++) {
		wc[i] = cq->wcs[cq->first];
		cq->first = (cq->first + 1) % cq->size;
		cq->count--;
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
	return i;
}

static int fk_arm_ring(struct ib_cq *ibcq, enum ib_cq_notify_flags f)
{
	struct fk_ring *cq = ring_of(ibcq);
	unsigned long flags;
	int missed;

	spin_lock_irqsave(&fk_fabric, flags);
	cq->armed = true;
	missed = (f & IB_CQ_REPORT_MISSED_EVENTS) && cq->count;
	spin_unlock_irqrestore(&fk_fabric, flags);
	return missed;
}

static void complete_wc(struct ib_cq *ibcq, const struct ib_wc *wc)
{
	struct fk_ring *cq = ring_of(ibcq);

	if (cq->count == cq->size) {
		pr_warn_once("fakerdma: a completion queue overflows\n");
		return;
	}
	cq->wcs[(cq->first + cq->count++) % cq->size] = *wc;
	if (!cq->armed)
		return;
	cq->armed = false;
	if (ibcq->comp_handler)
		ibcq->comp_handler(ibcq, ibcq->cq_context);
}

/* Takes the completions of a QP that ends out of a CQ. */
static void forget(struct ib_cq *ibcq, struct ib_qp *qp)
{
	struct fk_ring *cq = ring_of(ibcq);
	u32 i, kept = 0, n = cq->count;

	for (i = 0; i < n; i++) {
		struct ib_wc wc = cq->wcs[(cq->first + i) % cq->size];

		if (wc.qp != qp)
			cq->wcs[(cq->first + kept++) % cq->size] = wc;
	}
	cq->count = kept;
}

/* ------------------------------------------------------- queue pairs ---- */

static int fk_create_pair(struct ib_qp *ibqp, struct ib_qp_init_attr *a, struct ib_udata *u)
{
	struct fk_pair *qp = pair_of(ibqp);
	unsigned long flags;

	if (a->srq)
		return -EOPNOTSUPP;
	qp->rq_size = a->cap.max_recv_wr;
	qp->rq_sges = max(a->cap.max_recv_sge, 1U);
	if (qp->rq_size) {
		qp->rq = kvcalloc(qp->rq_size, sizeof(*qp->rq), GFP_KERNEL);
		qp->sges = kvcalloc(array_size(qp->rq_size, qp->rq_sges), sizeof(*qp->sges), GFP_KERNEL);
		if (!qp->rq || !qp->sges) {
			kvfree(qp->rq);
			kvfree(qp->sges);
			return -ENOMEM;
		}
	}
	qp->sig_all = a->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->port = a->port_num ?: 1;
	qp->attr.qp_state = IB_QPS_RESET;
	switch (a->qp_type) {
	case IB_QPT_SMI:
		ibqp->qp_num = 0;
		break;
	case IB_QPT_GSI:
		ibqp->qp_num = 1;
		break;
	default:
		ibqp->qp_num = atomic_inc_return(&next_qpn) & 0xffffff;
	}
	INIT_LIST_HEAD(&qp->groups);
	spin_lock_irqsave(&fk_fabric, flags);
	list_add_tail(&qp->list, &qps);
	spin_unlock_irqrestore(&fk_fabric, flags);
	return 0;
}

/* Ends all receives with an error, as when a QP goes to that state. */
static void flush(struct fk_pair *qp)
{
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR, .opcode = IB_WC_RECV, .qp = &qp->ibqp };

	for (; qp->rq_count; qp->rq_count--) {
		wc.wr_id = qp->rq[qp->rq_first].wr_id;
		qp->rq_first = (qp->rq_first + 1) % qp->rq_size;
		complete_wc(qp->ibqp.recv_cq, &wc);
	}
}

static int fk_modify_pair(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask, struct ib_udata *u)
{
	struct fk_pair *qp = pair_of(ibqp);
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	if (mask & IB_QP_PORT)
		qp->port = a->port_num;
	if (mask & IB_QP_PKEY_INDEX)
		qp->pkey_index = a->pkey_index;
	if (mask & IB_QP_QKEY)
		qp->qkey = a->qkey;
	if (mask & IB_QP_DEST_QPN)
		qp->dest = a->dest_qp_num;
	if (mask & IB_QP_AV)
		qp->dlid = rdma_ah_get_dlid(&a->ah_attr);
	if (mask & IB_QP_STATE) {
		qp->attr.qp_state = a->qp_state;
		if (a->qp_state == IB_QPS_ERR)
			flush(qp);
		if (a->qp_state == IB_QPS_RESET)
			qp->rq_count = 0;
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
	return 0;
}

static int fk_query_pair(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask,
			 struct ib_qp_init_attr *i)
{
	struct fk_pair *qp = pair_of(ibqp);

	*a = qp->attr;
	a->port_num = qp->port;
	a->pkey_index = qp->pkey_index;
	a->qkey = qp->qkey;
	memset(i, 0, sizeof(*i));
	return 0;
}

static int fk_destroy_pair(struct ib_qp *ibqp, struct ib_udata *u)
{
	struct fk_pair *qp = pair_of(ibqp);
	struct fk_group *g, *next;
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	list_del(&qp->list);
	if (ibqp->recv_cq)
		forget(ibqp->recv_cq, ibqp);
	if (ibqp->send_cq)
		forget(ibqp->send_cq, ibqp);
	list_for_each_entry_safe(g, next, &qp->groups, list)
		kfree(g);
	spin_unlock_irqrestore(&fk_fabric, flags);
	kvfree(qp->rq);
	kvfree(qp->sges);
	return 0;
}

static int fk_post_receives(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
			    const struct ib_recv_wr **bad)
{
	struct fk_pair *qp = pair_of(ibqp);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&fk_fabric, flags);
	for (; wr; wr = wr->next) {
		u32 at;

		if (qp->attr.qp_state == IB_QPS_ERR) {
			struct ib_wc wc = {
				.wr_id = wr->wr_id, .status = IB_WC_WR_FLUSH_ERR,
				.opcode = IB_WC_RECV, .qp = ibqp,
			};

			complete_wc(ibqp->recv_cq, &wc);
			continue;
		}
		if (qp->rq_count == qp->rq_size || wr->num_sge > qp->rq_sges) {
			*bad = wr;
			err = -ENOMEM;
			break;
		}
		at = (qp->rq_first + qp->rq_count++) % qp->rq_size;
		qp->rq[at] = (struct fk_recv){ wr->wr_id, wr->num_sge };
		memcpy(&qp->sges[at * qp->rq_sges], wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	}
	spin_unlock_irqrestore(&fk_fabric, flags);
	return err;
}

/* ---------------------------------------------------------- delivery ---- */

/* Copies to the memory of a receive, from an offset on. Returns how much it took. */
static u32 scatter(struct ib_sge *sge, int n, u32 off, const void *from, u32 len)
{
	u32 done = 0;

	for (; n && done < len; n--, sge++) {
		u32 part;

		if (off >= sge->length) {
			off -= sge->length;
			continue;
		}
		part = min(sge->length - off, len - done);
		memcpy(ib_virt_dma_to_ptr(sge->addr) + off, from + done, part);
		done += part;
		off = 0;
	}
	return done;
}

/* Puts a packet into the receive queue of a QP. A datagram has room for a GRH before it. */
static bool deliver(struct fk_pair *qp, const struct ib_grh *grh, const void *data, u32 len,
		    struct ib_wc *wc)
{
	u32 head = qp->ibqp.qp_type == IB_QPT_RC ? 0 : sizeof(*grh);
	struct ib_sge *sges;
	struct fk_recv *w;

	if (!qp->rq_count || (qp->attr.qp_state != IB_QPS_RTR && qp->attr.qp_state != IB_QPS_RTS))
		return false;
	w = &qp->rq[qp->rq_first];
	sges = &qp->sges[qp->rq_first * qp->rq_sges];
	if (grh && head)
		scatter(sges, w->num_sge, 0, grh, sizeof(*grh));
	wc->wr_id = w->wr_id;
	wc->status = scatter(sges, w->num_sge, head, data, len) == len ? IB_WC_SUCCESS : IB_WC_LOC_LEN_ERR;
	wc->opcode = IB_WC_RECV;
	wc->byte_len = len + head;
	wc->qp = &qp->ibqp;
	wc->port_num = qp->port;
	wc->wc_flags = grh ? IB_WC_GRH : 0;
	qp->rq_first = (qp->rq_first + 1) % qp->rq_size;
	qp->rq_count--;
	complete_wc(qp->ibqp.recv_cq, wc);
	return true;
}

/* The QP of a port with this number; 0 and 1 exist once for each port. */
static struct fk_pair *pair_with(struct fk_ibport *p, u32 number)
{
	struct fk_pair *qp;

	list_for_each_entry(qp, &qps, list)
		if (qp->ibqp.device == p->dev && qp->ibqp.qp_num == number &&
		    (number > 1 || qp->port == p->number))
			return qp;
	return NULL;
}

void fk_deliver_smp(struct fk_ibport *to, u16 slid, const struct ib_smp *smp)
{
	struct fk_pair *qp = pair_with(to, 0);
	struct ib_wc wc = { .slid = slid };

	if (qp && !to->deaf)
		deliver(qp, NULL, smp, sizeof(*smp), &wc);
}

/* Members of a partition reach each other unless both are limited (IBTA 10.9.3). */
static bool pkeys_match(u16 a, u16 b)
{
	return (a & 0x7fff) && (a & 0x7fff) == (b & 0x7fff) && ((a | b) & 0x8000);
}

/* The index of the key in the receiver's table, -1 if the QP does not take it. */
static int pkey_index(struct fk_pair *qp, struct fk_ibport *p, u16 pkey)
{
	int i;

	if (qp->ibqp.qp_num != 1)
		return qp->pkey_index < FK_PKEYS && pkeys_match(p->pkeys[qp->pkey_index], pkey) ?
			qp->pkey_index : -1;
	for (i = 0; i < FK_PKEYS; i++)
		if (pkeys_match(p->pkeys[i], pkey))
			return i;
	return -1;
}

static bool attached(struct fk_pair *qp, const union ib_gid *gid)
{
	struct fk_group *g;

	list_for_each_entry(g, &qp->groups, list)
		if (!memcmp(&g->gid, gid, sizeof(*gid)))
			return true;
	return false;
}

/* Is the datagram for this QP, by its LID and QPN, or by its group? */
static bool addressed(struct fk_pair *qp, struct fk_ibport *p, const struct fk_ah *ah, u32 qpn)
{
	if (qp->ibqp.qp_type != IB_QPT_UD && qp->ibqp.qp_type != IB_QPT_GSI)
		return false;
	if (ah->dlid >= FK_MULTICAST)
		return attached(qp, &ah->dgid);
	return qp->ibqp.qp_num == qpn && be16_to_cpu(p->pi.lid) == ah->dlid;
}

static bool send_connected(struct fk_pair *qp, struct fk_ibport *p, const void *data, u32 len)
{
	struct fk_ibport *to = fk_port_with(qp->dlid);
	struct fk_pair *dest = to ? pair_with(to, qp->dest) : NULL;
	struct ib_wc wc = { .src_qp = qp->ibqp.qp_num, .slid = be16_to_cpu(p->pi.lid) };

	return dest && fk_routed(p, to, qp->dlid) && deliver(dest, NULL, data, len, &wc);
}

static void send_datagram(struct fk_pair *qp, struct fk_ibport *p, const struct ib_ud_wr *ud,
			  const void *data, u32 len)
{
	struct fk_ah *ah = container_of(ud->ah, struct fk_ah, ibah);
	bool gsi = qp->ibqp.qp_type == IB_QPT_GSI;
	u16 index = gsi ? ud->pkey_index : qp->pkey_index;
	u32 own = gsi ? IB_QP1_QKEY : qp->qkey;
	u32 qkey = ud->remote_qkey & IB_QP_SET_QKEY ? own : ud->remote_qkey;
	u16 pkey = index < FK_PKEYS ? p->pkeys[index] : 0;
	struct ib_grh grh = {
		.version_tclass_flow = cpu_to_be32(6 << 28), .next_hdr = 0x1b, .hop_limit = 1,
		.paylen = cpu_to_be16(len), .dgid = ah->dgid,
	};
	struct fk_pair *dest;

	if (fk_state_of(&p->pi) != IB_PORT_ACTIVE || (gsi && p->deaf))
		return;
	grh.sgid.global.subnet_prefix = p->pi.gid_prefix;
	grh.sgid.global.interface_id = p->guid;
	list_for_each_entry(dest, &qps, list) {
		struct fk_ibport *to = fk_ibport_of(dest->ibqp.device, dest->port);
		struct ib_wc wc = {
			.src_qp = qp->ibqp.qp_num, .slid = be16_to_cpu(p->pi.lid), .sl = ah->sl,
		};
		int found;

		if (fk_state_of(&to->pi) != IB_PORT_ACTIVE || !addressed(dest, to, ah, ud->remote_qpn) ||
		    !fk_routed(p, to, ah->dlid) || (dest->ibqp.qp_num == 1 && to->deaf))
			continue;
		found = pkey_index(dest, to, pkey);
		if (found < 0) {
			be16_add_cpu(&to->pi.pkey_violations, 1);
			continue;
		}
		if (qkey != (dest->ibqp.qp_num == 1 ? IB_QP1_QKEY : dest->qkey)) {
			be16_add_cpu(&to->pi.qkey_violations, 1);
			continue;
		}
		wc.pkey_index = found;
		deliver(dest, ah->grh ? &grh : NULL, data, len, &wc);
	}
}

/* Sends the packet of a work request, and returns how it ended. */
static enum ib_wc_status send(struct fk_pair *qp, const struct ib_send_wr *wr, void *data, u32 len)
{
	struct fk_ibport *p = fk_ibport_of(qp->ibqp.device, qp->port);

	if (qp->attr.qp_state == IB_QPS_ERR)
		return IB_WC_WR_FLUSH_ERR;
	switch (qp->ibqp.qp_type) {
	case IB_QPT_RC:
		return send_connected(qp, p, data, len) ? IB_WC_SUCCESS : IB_WC_RETRY_EXC_ERR;
	case IB_QPT_SMI:
		if (!p->deaf && len == sizeof(struct ib_smp))
			fk_send_smp(p, container_of(ud_wr(wr)->ah, struct fk_ah, ibah)->dlid, data);
		return IB_WC_SUCCESS;
	default:
		send_datagram(qp, p, ud_wr(wr), data, len);
		return IB_WC_SUCCESS;
	}
}

static int fk_post_sends(struct ib_qp *ibqp, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct fk_pair *qp = pair_of(ibqp);
	unsigned long flags;
	int i;

	for (; wr; wr = wr->next) {
		struct ib_wc wc = { .wr_id = wr->wr_id, .qp = ibqp, .opcode = IB_WC_SEND };
		u32 len = 0;
		u8 *data;

		*bad = wr;
		if (wr->opcode != IB_WR_SEND)
			return -EOPNOTSUPP;
		for (i = 0; i < wr->num_sge; i++)
			len += wr->sg_list[i].length;
		data = kmalloc(max(len, 1U), GFP_ATOMIC);
		if (!data)
			return -ENOMEM;
		for (i = 0, len = 0; i < wr->num_sge; len += wr->sg_list[i++].length)
			memcpy(data + len, ib_virt_dma_to_ptr(wr->sg_list[i].addr), wr->sg_list[i].length);
		spin_lock_irqsave(&fk_fabric, flags);
		wc.status = send(qp, wr, data, len);
		if (qp->sig_all || (wr->send_flags & IB_SEND_SIGNALED) || wc.status != IB_WC_SUCCESS)
			complete_wc(ibqp->send_cq, &wc);
		spin_unlock_irqrestore(&fk_fabric, flags);
		kfree(data);
	}
	*bad = NULL;
	return 0;
}

/* ------------------------------------------------ addresses and groups ---- */

static int fk_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *i, struct ib_udata *u)
{
	struct fk_ah *ah = container_of(ibah, struct fk_ah, ibah);
	struct rdma_ah_attr *a = i->ah_attr;

	ah->port = rdma_ah_get_port_num(a);
	ah->dlid = rdma_ah_get_dlid(a);
	ah->sl = rdma_ah_get_sl(a);
	ah->grh = rdma_ah_get_ah_flags(a) & IB_AH_GRH;
	if (ah->grh)
		ah->dgid = rdma_ah_read_grh(a)->dgid;
	return 0;
}

/* Without it the core's client of the subnet's administration cannot send (alloc_mad). */
static int fk_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *a)
{
	struct fk_ah *ah = container_of(ibah, struct fk_ah, ibah);

	memset(a, 0, sizeof(*a));
	a->type = RDMA_AH_ATTR_TYPE_IB;
	rdma_ah_set_dlid(a, ah->dlid);
	rdma_ah_set_sl(a, ah->sl);
	rdma_ah_set_port_num(a, ah->port);
	return 0;
}

static int fk_destroy_ah(struct ib_ah *ah, u32 flags)
{
	return 0;
}

static int fk_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct fk_group *g = kzalloc(sizeof(*g), GFP_KERNEL);
	unsigned long flags;

	if (!g)
		return -ENOMEM;
	g->gid = *gid;
	spin_lock_irqsave(&fk_fabric, flags);
	list_add_tail(&g->list, &pair_of(ibqp)->groups);
	spin_unlock_irqrestore(&fk_fabric, flags);
	return 0;
}

static int fk_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct fk_group *g, *next;
	unsigned long flags;

	spin_lock_irqsave(&fk_fabric, flags);
	list_for_each_entry_safe(g, next, &pair_of(ibqp)->groups, list)
		if (!memcmp(&g->gid, gid, sizeof(*gid))) {
			list_del(&g->list);
			kfree(g);
			break;
		}
	spin_unlock_irqrestore(&fk_fabric, flags);
	return 0;
}

const struct ib_device_ops fk_queue_ops = {
	.create_cq = fk_create_ring,
	.destroy_cq = fk_destroy_ring,
	.poll_cq = fk_poll_ring,
	.req_notify_cq = fk_arm_ring,
	.create_qp = fk_create_pair,
	.modify_qp = fk_modify_pair,
	.query_qp = fk_query_pair,
	.destroy_qp = fk_destroy_pair,
	.post_send = fk_post_sends,
	.post_recv = fk_post_receives,
	.create_ah = fk_create_ah,
	.query_ah = fk_query_ah,
	.destroy_ah = fk_destroy_ah,
	.attach_mcast = fk_attach_mcast,
	.detach_mcast = fk_detach_mcast,
	INIT_RDMA_OBJ_SIZE(ib_ah, fk_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_cq, fk_ring, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_qp, fk_pair, ibqp),
};
