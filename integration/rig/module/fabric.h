/* SPDX-License-Identifier: GPL-2.0 */
#ifndef FK_FABRIC_H
#define FK_FABRIC_H

#include <linux/spinlock.h>
#include <rdma/ib_smi.h>
#include <rdma/ib_verbs.h>

#define FK_PKEYS 32		/* of a port: one block of a P_Key table */
#define FK_SWITCH_PORTS 31	/* of the switch, besides port 0, which manages it */
#define FK_MULTICAST 0xc000	/* the first LID of a group */

/* A port of an HCA, as its firmware has it. */
struct fk_ibport {
	struct ib_device *dev;
	u32 number;
	int at;			/* the switch's port that it is on, 0: none */
	__be64 guid;
	bool deaf;		/* drops management packets, both ways */
	struct ib_port_info pi;
	u16 pkeys[FK_PKEYS];
};

/* An address handle: where a datagram goes. */
struct fk_ah {
	struct ib_ah ibah;
	u32 port, dlid;
	u8 sl;
	bool grh;
	union ib_gid dgid;
};

/* Of the switch, all ports, and all queues. */
extern spinlock_t fk_fabric;

static inline u8 fk_state_of(const struct ib_port_info *pi)
{
	return pi->linkspeed_portstate & 0xf;
}

/* subnet.c */
int fk_ib_plug(struct fk_ibport *p, struct ib_device *d, u32 number, __be64 guid);
void fk_ib_unplug(struct fk_ibport *p);
void fk_ib_query_port(struct fk_ibport *p, struct ib_port_attr *a);
void fk_ib_set_cable(struct fk_ibport *p, bool in);
void fk_ib_set_pkeys(struct fk_ibport *p, const u16 *pkeys);
void fk_ib_set_lid(struct fk_ibport *p, u16 lid);

/* subnet.c; the caller has the lock. */
struct fk_ibport *fk_port_with(u16 lid);
bool fk_routed(struct fk_ibport *from, struct fk_ibport *to, u16 lid);
void fk_send_smp(struct fk_ibport *p, u16 dlid, struct ib_smp *smp);

/* queues.c; the caller has the lock. */
void fk_deliver_smp(struct fk_ibport *to, u16 slid, const struct ib_smp *smp);

/* rdma.c */
struct fk_ibport *fk_ibport_of(struct ib_device *d, u32 number);

extern const struct ib_device_ops fk_queue_ops, fk_subnet_ops;

#endif
