// Spikes on their way: for every core and every tick modulo SLOTS, the axons at which a spike arrives.
//
// set marks one axon, take reads a core's axons and clears them; one of the two a cycle. Both read the row at one clock
// edge and write it at the next. A row that was written one cycle before is forwarded, for the memory still gave the old
// one. The axons that take asked for are on taken in the cycle after.
module scheduler #(
    parameter int CORES = 1,
    parameter int AXONS = 256,
    parameter int SLOTS = 16,
    parameter int CORE_BITS = 16,
    parameter int AXON_BITS = $clog2(AXONS),
    parameter int SLOT_BITS = $clog2(SLOTS)
) (
    input  logic                 clock,
    input  logic                 set,
    input  logic                 take,
    input  logic [CORE_BITS-1:0] core,
    input  logic [SLOT_BITS-1:0] slot,
    input  logic [AXON_BITS-1:0] axon,
    output logic [AXONS-1:0]     taken
);
    localparam int ROW_BITS = $clog2(CORES * SLOTS);

    logic [AXONS-1:0]     rows [CORES*SLOTS];
    logic [AXONS-1:0]     read, written;
    logic [ROW_BITS-1:0]  address, address_q, address_w;
    logic [AXON_BITS-1:0] axon_q;
    logic                 set_q, take_q, busy_w;

    initial for (int i = 0; i < CORES * SLOTS; i++) rows[i] = '0;

    assign address = ROW_BITS'({core, slot});
    assign taken = busy_w && address_w == address_q ? written : read;

    always_ff @(posedge clock) begin
        read <= rows[address];
        address_q <= address;
        axon_q <= axon;
        set_q <= set;
        take_q <= take;
        busy_w <= set_q || take_q;
        address_w <= address_q;
        if (set_q || take_q) begin
            written <= take_q ? '0 : taken | (AXONS'(1) << axon_q);
            rows[address_q] <= take_q ? '0 : taken | (AXONS'(1) << axon_q);
        end
    end

    // Powers of two, so that {core, slot} is the row.
    if (SLOTS != 1 << SLOT_BITS) begin : slots_must_be_a_power_of_two
        $error("SLOTS must be a power of two");
    end
endmodule
