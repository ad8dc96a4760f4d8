// One neuron a cycle of a neurosynaptic core:
//
//     V = sum over axon types y of WEIGHTS[y] * ones(row & axons & axons of type y) - theta,    fires iff V >= 0.
//
// row is the neuron's line of the crossbar, axons the spikes that arrive in this tick. V is not kept. The answer comes
// two clock edges after row and theta.
module neuron #(
    parameter int AXONS = 256,
    parameter int TYPES = 2,
    parameter int TYPE_BITS = 1,
    parameter int WEIGHT_BITS = 9,
    parameter int THETA_BITS = 9,
    parameter int POTENTIAL_BITS = 20,
    parameter logic [TYPES*WEIGHT_BITS-1:0] WEIGHTS = {-9'sd1, 9'sd1}
) (
    input  logic                        clock,
    input  logic [AXONS-1:0]            row,
    input  logic [AXONS-1:0]            axons,
    // Bit b of every axon's type, plane after plane.
    input  logic [TYPE_BITS*AXONS-1:0]  types,
    input  logic signed [THETA_BITS-1:0] theta,
    output logic                        fires
);
    localparam int COUNT_BITS = $clog2(AXONS + 1);

    // A synthesiser builds the adders from a loop, a simulator is faster with the system function.
    function automatic logic [COUNT_BITS-1:0] ones(input logic [AXONS-1:0] word);
`ifdef SYNTHESIS
        ones = '0;
        for (int i = 0; i < AXONS; i++) ones = ones + COUNT_BITS'(word[i]);
`else
        ones = COUNT_BITS'($countones(word));
`endif
    endfunction

    logic [TYPES*COUNT_BITS-1:0]         counts;
    logic signed [THETA_BITS-1:0]        theta_q;
    logic signed [POTENTIAL_BITS-1:0]    potential;

    for (genvar y = 0; y < TYPES; y++) begin : type_of
        logic [AXONS-1:0] mask;
        always_comb begin
            mask = '1;
            for (int b = 0; b < TYPE_BITS; b++)
                mask = mask & (((y >> b) & 1) != 0 ? types[b*AXONS +: AXONS] : ~types[b*AXONS +: AXONS]);
        end
        always_ff @(posedge clock) counts[y*COUNT_BITS +: COUNT_BITS] <= ones(row & axons & mask);
    end

    always_comb begin
        potential = POTENTIAL_BITS'(0) - POTENTIAL_BITS'(theta_q);
        for (int y = 0; y < TYPES; y++)
            potential = potential + POTENTIAL_BITS'($signed(WEIGHTS[y*WEIGHT_BITS +: WEIGHT_BITS]))
                * $signed(POTENTIAL_BITS'(counts[y*COUNT_BITS +: COUNT_BITS]));
    end

    always_ff @(posedge clock) begin
        theta_q <= theta;
        fires <= !potential[POTENTIAL_BITS-1];
    end
endmodule
