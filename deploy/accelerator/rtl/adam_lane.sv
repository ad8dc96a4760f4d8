// One lane of the optimiser: a parameter a cycle, the plain form of common/precision/fixed_adam.py for 32 bits.
// A name ends in the stage whose register it is; inputs enter stage 0, results leave stage 76.
module adam_lane (
    input  logic               clock,
    input  logic signed [31:0] weight,
    input  logic signed [31:0] target,
    input  logic signed [31:0] m,
    input  logic signed [31:0] v,
    input  logic signed [31:0] gradient,
    input  logic signed [31:0] m_decay,
    input  logic signed [31:0] v_decay,
    input  logic signed [31:0] tau,
    input  logic        [31:0] alpha,
    input  logic        [31:0] epsilon,
    output logic signed [31:0] new_weight,
    output logic signed [31:0] new_target,
    output logic signed [31:0] new_m,
    output logic signed [31:0] new_v
); /* verilator no_inline_module */
    localparam logic signed [63:0] HIGH = 64'sd2147483647;

    function automatic logic signed [31:0] saturated(input logic signed [63:0] x);
        saturated = x > HIGH ? 32'sh7fffffff : (x < -HIGH - 64'sd1 ? 32'sh80000000 : x[31:0]);
    endfunction

    // What waits: weight and target for the step, the moments for the line's end.
    logic signed [31:0] weights [0:72];
    logic signed [31:0] targets [0:75];
    logic signed [31:0] moments [3:76];
    logic signed [31:0] squares [4:76];
    logic negatives [37:72];
    logic signed [31:0] g_0, m_0, m_1, m_2, v_0, v_1, v_2, v_3;
    logic signed [32:0] gap_1, rise_2, way_74;
    logic signed [63:0] square_1, gap_2, rise_3, size_37, way_75;
    logic        [31:0] divisor_37, divisor_38;
    logic        [47:0] size_38;
    logic signed [31:0] weight_73, weight_74, weight_75, weight_76, target_76;
    wire         [30:0] root_36;
    wire         [32:0] step_72;
    wire         [63:0] magnitude_37 = size_37 < 0 ? -size_37 : size_37;
    wire         [63:0] rounded_37 = magnitude_37 + {17'd0, divisor_37, 15'd0};
    wire signed  [63:0] taken_72 = negatives[72] ? -$signed({31'd0, step_72}) : $signed({31'd0, step_72});

    root second_moment (.clock(clock), .square({squares[4][30:0], 31'd0}), .found(root_36));
    divider #(.NUMERATOR(48), .DENOMINATOR(32), .QUOTIENT(33)) step (
        .clock(clock), .numerator(size_38), .denominator(divisor_38), .quotient(step_72)
    );

    integer i;
    always_ff @(posedge clock) begin
        g_0 <= gradient;
        m_0 <= m;
        v_0 <= v;
        weights[0] <= weight;
        targets[0] <= target;
        gap_1 <= 33'(g_0) - 33'(m_0);
        square_1 <= 64'(g_0) * 64'(g_0);
        m_1 <= m_0;
        v_1 <= v_0;
        gap_2 <= 64'(gap_1) * 64'(m_decay);
        rise_2 <= 33'((square_1 + HIGH) >>> 31) - 33'(v_1);
        m_2 <= m_1;
        v_2 <= v_1;
        moments[3] <= 32'(64'(m_2) + ((gap_2 + 64'sd1073741824) >>> 31));
        rise_3 <= 64'(rise_2) * 64'(v_decay);
        v_3 <= v_2;
        squares[4] <= saturated(64'(v_3) + ((rise_3 + HIGH) >>> 31));
        size_37 <= $signed({32'd0, alpha}) * 64'(moments[36]);
        divisor_37 <= {1'b0, root_36} + epsilon;
        size_38 <= rounded_37[63:16];
        divisor_38 <= divisor_37;
        negatives[37] <= moments[36] < 0;
        weight_73 <= saturated(64'(weights[72]) - taken_72);
        way_74 <= 33'(weight_73) - 33'(targets[73]);
        weight_74 <= weight_73;
        way_75 <= 64'(way_74) * 64'(tau);
        weight_75 <= weight_74;
        target_76 <= 32'(64'(targets[75]) + ((way_75 + 64'sd1073741824) >>> 31));
        weight_76 <= weight_75;
        for (i = 0; i < 72; i = i + 1) weights[i+1] <= weights[i];
        for (i = 0; i < 75; i = i + 1) targets[i+1] <= targets[i];
        for (i = 3; i < 76; i = i + 1) moments[i+1] <= moments[i];
        for (i = 4; i < 76; i = i + 1) squares[i+1] <= squares[i];
        for (i = 37; i < 72; i = i + 1) negatives[i+1] <= negatives[i];
    end
    assign new_weight = weight_76;
    assign new_target = target_76;
    assign new_m = moments[76];
    assign new_v = squares[76];
endmodule
